"""Writes the templates and vectors that ChatTemplateTest reads: make_chats.py TOKENIZER FOLDER

Needs transformers (5.17 made what is stored). The templates have what those of Llama 3, Qwen 2 and 3 and Mistral are written with, with tools and without. Where a template
has no {% generation %}, the mask is that of what is behind the text of all messages before an answer.
"""
import json
import sys
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

TEMPLATES = {
    # Names with numbers in them, lists from their end, Python's methods of texts, tests behind not.
    "thoughts": r"""{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|begin|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content + '<|end|>\n' }}
    {%- else %}
        {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|begin|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""",
    # Slices, defaults, a date, trimmed texts.
    "headers": r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y-%m-%d") %}
    {%- else %}
        {%- set date_string = "unknown" %}
    {%- endif %}
{%- endif %}
{#- It's a comment. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "system\n\nLetters of today: " + date_string|length|string + "\n\n" }}
{{- system_message }}
{{- eos_token }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- message['role'] + '\n\n' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'assistant\n\n' }}
{%- endif %}
""",
    # Filters by attribute, lists that grow, refusals.
    "brackets": r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages | rejectattr("role", "equalto", "tool") %}
    {%- if message["role"] == "user" %}
        {%- if system_message is defined and loop.first %}
            {{- "[INST] " ~ system_message ~ "\n\n" ~ message["content"] ~ "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
""",
    # Answers that are marked, a macro, a loop that is left, JSON.
    "marked": r"""{%- macro turn(role, content) -%}
    {{- '<|begin|>' + role + '\n' + content -}}
{%- endmacro -%}
{% for message in messages %}
    {% if message.role == 'stop' %}
        {% break %}
    {% elif message.role == 'assistant' %}
{{ turn(message.role, '') }}{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}

    {%- elif message.role == 'system' %}
{{ turn(message.role, message.content | tojson) + '<|end|>' }}
    {%- else %}
{{ turn(message.role, message.content) + '<|end|>' }}
    {%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ turn('assistant', '') }}{% endif %}
""",
    # As Qwen's: tools in the system's message, calls as JSON, results together as one message of the user.
    "calls": r"""{%- if tools %}
    {{- '<|begin|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "Functions, one a line:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" ~ tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\nCall as {\"name\": <name>, \"arguments\": <object>}<|end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|begin|>system\n' + messages[0].content + '<|end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|begin|>' + message.role + '\n' + message.content + '<|end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|begin|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\n</call>' }}
        {%- endfor %}
        {{- '<|end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|begin|>user' }}
        {%- endif %}
        {{- '\n<result>\n' }}
        {{- message.content }}
        {{- '\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|begin|>assistant\n' }}
{%- endif %}
""",
    # As Llama's: schemas with indents in the first message of the user, one call a message, mappings or lists as results.
    "schemas": r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "system\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Answer by a call." }}
{%- endif %}
{{- system_message + eos_token }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("expected a message of the user") }}
    {%- endif %}
    {{- 'user\n\nFunctions:\n\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + eos_token }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- message['role'] + '\n\n' + message['content'] | trim + eos_token }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("expected one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- 'assistant\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- eos_token }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "ipython\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'assistant\n\n' }}
{%- endif %}
""",
    # As Mistral's: tools before the last message of the user, mappings walked by items, identifiers that are checked, answers marked.
    "functions": r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- elif tools is not none %}
    {%- set parts = namespace(count=0, names='') %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- set parts.count = parts.count + 1 %}
                {%- set parts.names = parts.names ~ tool.get('name') ~ tool.get('none', '!') %}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/TOOLS " ~ parts.count ~ parts.names ~ "]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif (message.tool_calls is defined and message.tool_calls is not none) %}
        {%- generation %}
        {{- "[CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
        {%- endgeneration %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}
        {{- " " + message["content"]|trim + eos_token }}
        {%- endgeneration %}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}
        {{- raise_exception("no such role") }}
    {%- endif %}
{%- endfor %}
""",
    # What values are and how Python writes them: types of JSON, schemas as XML, filters with arguments.
    "types": r"""{%- macro walk(value) -%}
{%- if value is mapping -%}
    {%- for name, inner in value|items -%}<{{ name }}>{{ walk(inner) }}</{{ name }}>{%- endfor -%}
{%- elif value is sequence and value is not string -%}
    {%- for inner in value -%}<item>{{ walk(inner) }}</item>{%- endfor -%}
{%- elif value is boolean -%}flag {{ value }} {{ value | string }} {{ value is number }}
{%- elif value is integer -%}integer {{ value }}
{%- elif value is float -%}real {{ value }} {{ value is iterable }}
{%- elif value is string -%}text {{ value | tojson(ensure_ascii=true) }} {{ value is sequence }} {{ value is iterable }}
{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] -%}
{{ walk(tool) }}
{{ tool }}
{{ tool | string | length }}
{{ tool.function.parameters | tojson(indent=2, sort_keys=true) }}
{{ tool | tojson(separators=(',', ':')) }}
{{ tool.function.keys() | list | join('/') }} {{ tool.function.parameters['required'] | default([]) | tojson(indent=0) }}
{% endfor -%}
{%- for message in messages -%}
    {%- for call in message.tool_calls or [] -%}
{{ call.function.arguments }}{{ walk(call.function.arguments) }}{{ call.function.arguments | tojson(indent='\t') }}
    {%- endfor -%}
    {%- if message.content is string -%}
{{ message.role }}: {{ message.content }}
{% elif message.content is iterable and message.content is not mapping -%}
        {%- for part in message.content -%}{{ part.type }}={{ part['text'] }};{%- endfor -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}assistant: {% endif -%}
""",
}
CHATS = [
    [("user", "What is 2+2?"), ("assistant", "4.")],
    [("system", ' You are "terse".\n'), ("user", " Größe, 日本語 😀?\n\nx"), ("assistant", "😀 Ja, naïve 日本語\n"), ("user", "It's 'quoted' \\n {{ x }}"),
     ("assistant", "Two {% if %} <b>bold</b>")],
    [("user", "Q"), ("assistant", "<think>\nhm\n</think>\n\nA"), ("user", "R"), ("assistant", "<think>\nlonger\nthought\n</think>\n\nB")],
    [("user", "Only a question")],
    [("user", "x"), ("assistant", "y"), ("stop", "z"), ("user", "w")],
    [("user", "first"), ("user", "second"), ("assistant", "third")],
]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather in \"a\" <city> & more, 日本",
           "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "its name"},
                                                            "days": {"type": "integer", "minimum": 1, "default": 3, "enum": [1, 3, 10000000000000000000000]},
                                                            "exact": {"type": ["boolean", "null"], "default": False},
                                                            "items": {"type": "array", "items": {"type": "number"}, "default": [], "x": {}}},
                          "required": ["city"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": None, "parameters": {"type": "object", "properties": {}}, "return": {"type": "string"}}}


def call(name, arguments, identifier="abcDEF123"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


QUESTION = {"role": "user", "content": "Weather in Köln?"}
CALL = {"role": "assistant", "content": None, "tool_calls": [call("weather", {
    "city": "Kö\"ln\n", "days": 2, "exact": True, "none": None, "reals": [1.0, 0.1, 1e16, 1.5e-7, 123456789.125, -0.0, 1e22, 5e-324, 0.0001], "mixed": ["it's", 'a"b', {"z": 1, "a": []}, "\u00e9\u200b\x7f😀\\"]})]}
RESULT = {"role": "tool", "tool_call_id": "abcDEF123", "name": "weather", "content": '{"sun": true}'}
SUNNY = {"role": "assistant", "content": " Sunny. "}
TOOL_CHATS = [
    ([WEATHER, CLOCK], [QUESTION, CALL, RESULT, SUNNY]),
    ([WEATHER], [{"role": "system", "content": "Be brief."}, QUESTION, CALL, RESULT, SUNNY, {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Bye"}]),
    ([CLOCK], [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "I look.", "tool_calls": [call("clock", {}), call("clock", '{"zone": "utc"}', "123456789")]},
               {"role": "tool", "tool_call_id": "abcDEF123", "content": "12:00"}, {"role": "tool", "tool_call_id": "123456789", "content": "11:00"},
               {"role": "assistant", "content": "Noon"}]),
    ([CLOCK], [QUESTION, SUNNY]),
    ([], [QUESTION, CALL, RESULT, SUNNY]),
    ([WEATHER], [QUESTION, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {"b": 1, "a": 2}}}]}]),
    ([], [{"role": "user", "content": [{"type": "text", "text": "in parts"}, {"type": "text", "text": "of texts"}]}, {"role": "assistant", "content": "y"}]),
]


def present(value):
    """Without fields that are None, as TRL renders chats; what only calls has the empty text."""
    if isinstance(value, dict):
        fields = {name: present(inner) for name, inner in value.items() if inner is not None}
        if fields.get("tool_calls"):
            fields.setdefault("content", "")
        return fields
    return [present(inner) for inner in value] if isinstance(value, list) else value


def spans(tokenizer, chat, tools, text):
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(chat[:i], tools=tools, tokenize=False, add_generation_prompt=True)
            behind = tokenizer.apply_chat_template(chat[:i + 1], tools=tools, tokenize=False)
            if not behind.startswith(before) or not text.startswith(behind):
                raise ValueError("otherwise")
            yield len(before), len(behind)


def vector(tokenizer, template, given, given_tools=()):
    found = {"messages": given}
    if given_tools:
        found["tools"] = given_tools
    chat = present(given)
    tools = present(given_tools) or None
    try:
        found["text"] = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
        found["answer"] = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
        encoded = tokenizer.apply_chat_template(chat, tools=tools, return_dict=True, return_assistant_tokens_mask="generation" in template)
        found["ids"] = encoded["input_ids"]
        if "generation %}" in template:
            found["mask"] = encoded["assistant_masks"]
        else:
            whole = tokenizer(found["text"], add_special_tokens=False, return_offsets_mapping=True)
            assert whole["input_ids"] == found["ids"]
            found["mask"] = [0] * len(found["ids"])
            for begin, end in spans(tokenizer, chat, tools, found["text"]):
                for i, (start, stop) in enumerate(whole["offset_mapping"]):
                    if start < end and stop > begin:
                        found["mask"][i] = 1
    except Exception as refused:
        found["refused"] = str(refused)
    return found


print(transformers.__version__)
for name, template in TEMPLATES.items():
    folder = Path(sys.argv[2]) / name
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(sys.argv[1]) / "tokenizer.json"), bos_token="<|begin|>", eos_token="<|end|>",
                                        chat_template=template)
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}) + "\n")
    vectors = [vector(tokenizer, template, [{"role": role, "content": content} for role, content in chat]) for chat in CHATS]
    if "tools" in template:
        vectors += [vector(tokenizer, template, chat, tools) for tools, chat in TOOL_CHATS]
    (folder / "vectors.json").write_text("[" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in vectors) + "]\n")
