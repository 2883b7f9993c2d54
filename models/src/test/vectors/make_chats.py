"""Writes the templates and vectors that ChatTemplateTest reads: make_chats.py TOKENIZER FOLDER

Needs transformers (5.17 made what is stored). The templates have what those of Llama 3, Qwen 2 and 3 and Mistral are written with. Where a template
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


def spans(tokenizer, chat, text):
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(chat[:i], tokenize=False, add_generation_prompt=True)
            behind = tokenizer.apply_chat_template(chat[:i + 1], tokenize=False)
            if not behind.startswith(before) or not text.startswith(behind):
                raise ValueError("otherwise")
            yield len(before), len(behind)


def vector(tokenizer, template, chat):
    found = {"messages": chat}
    try:
        found["text"] = tokenizer.apply_chat_template(chat, tokenize=False)
        found["answer"] = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask="generation" in template)
        found["ids"] = encoded["input_ids"]
        if "generation %}" in template:
            found["mask"] = encoded["assistant_masks"]
        else:
            whole = tokenizer(found["text"], add_special_tokens=False, return_offsets_mapping=True)
            assert whole["input_ids"] == found["ids"]
            found["mask"] = [0] * len(found["ids"])
            for begin, end in spans(tokenizer, chat, found["text"]):
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
    (folder / "vectors.json").write_text("[" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in vectors) + "]\n")
