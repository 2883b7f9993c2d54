package dev.chagres.models.text;

import com.hubspot.jinjava.Jinjava;
import com.hubspot.jinjava.JinjavaConfig;
import com.hubspot.jinjava.LegacyOverrides;
import com.hubspot.jinjava.el.JinjavaInterpreterResolver;
import com.hubspot.jinjava.el.JinjavaProcessors;
import com.hubspot.jinjava.interpret.Context;
import com.hubspot.jinjava.interpret.JinjavaInterpreter;
import com.hubspot.jinjava.interpret.TemplateError;
import com.hubspot.jinjava.lib.expression.DefaultExpressionStrategy;
import com.hubspot.jinjava.lib.exptest.ExpTest;
import com.hubspot.jinjava.lib.filter.Filter;
import com.hubspot.jinjava.lib.fn.ELFunctionDefinition;
import com.hubspot.jinjava.lib.tag.Tag;
import com.hubspot.jinjava.objects.SafeString;
import com.hubspot.jinjava.objects.collections.PyList;
import com.hubspot.jinjava.tree.Node;
import com.hubspot.jinjava.tree.TagNode;
import com.hubspot.jinjava.tree.output.RenderedOutputNode;
import com.hubspot.jinjava.tree.parse.ExpressionToken;
import com.hubspot.jinjava.util.ObjectTruthValue;
import dev.chagres.models.text.ChatTemplate.Rendered;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.time.format.DateTimeFormatterBuilder;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.regex.Pattern;
import jinjava.javax.el.CompositeELResolver;
import org.jspecify.annotations.Nullable;

/**
 * A template of Jinja, with what transformers adds to the language.
 *
 * <p>Threading: one thread at a time.
 */
final class JinjaTemplate {
    private static final Pattern GENERATION = Pattern.compile("\\{%-?\\s*generation\\s*-?%}");
    /** Around answers, while a text is rendered: private characters that no text of a chat has. */
    static final char BEGIN = '\uE0C1';

    static final char END = '\uE0C2';
    private static final int MOST_OF_DATE = 1_000;

    private final Path file;
    private final boolean marks;
    private final JinjaLimits limits = new JinjaLimits();
    private final Jinjava jinja;
    private final Node root;

    JinjaTemplate(Path file, String source) {
        this.file = file;
        if (source.indexOf(BEGIN) >= 0 || source.indexOf(END) >= 0) {
            throw new TextException(
                    file, "expected a template without the characters U+E0C1 and U+E0C2, got one with them", null);
        }
        JinjaSource known = JinjaSource.of(file, source);
        marks = GENERATION.matcher(source).find();
        var resolver = new CompositeELResolver();
        resolver.add(new PythonText(limits));
        resolver.add(JinjavaInterpreterResolver.DEFAULT_RESOLVER_READ_WRITE);
        jinja = new PythonJinja(JinjavaConfig.newBuilder()
                .withTrimBlocks(true)
                .withKeepTrailingNewline(true)
                .withNestedInterpretationEnabled(false)
                .withElResolver(resolver)
                .withProcessors(JinjavaProcessors.newBuilder()
                        .withNodePreProcessor((node, interpreter) -> limits.step(interpreter))
                        .build())
                .withEnableRecursiveMacroCalls(true)
                .withMaxMacroRecursionDepth(JinjaLimits.MACROS)
                .withMaxStringLength(JinjaLimits.TEXT)
                .withMaxOutputSize(JinjaLimits.TEXT)
                .withMaxListSize(JinjaLimits.MEMBERS)
                .withMaxMapSize(JinjaLimits.MEMBERS)
                .withDisabled(JinjaLimits.DISABLED)
                .withLegacyOverrides(LegacyOverrides.newBuilder()
                        .withEvaluateMapKeys(true)
                        .withIterateOverMapKeys(true)
                        .withUsePyishObjectMapper(true)
                        .withUseSnakeCasePropertyNaming(true)
                        .withUseNaturalOperatorPrecedence(true)
                        .withParseWhitespaceControlStrictly(true)
                        .withAllowAdjacentTextNodes(true)
                        .withUseTrimmingForNotesAndExpressions(true)
                        .withKeepNullableLoopValues(true)
                        .withHandleBackslashInQuotesOnly(true)
                        .build())
                .build());
        jinja.setResourceLocator((name, charset, interpreter) -> {
            throw new Refusal("expected one template alone, got one that includes " + name);
        });
        var context = jinja.getGlobalContext();
        limits.limit(context);
        try {
            Method refuse = JinjaTemplate.class.getDeclaredMethod("refuse", Object.class);
            Method now = JinjaTemplate.class.getDeclaredMethod("now", String.class);
            Method range = JinjaLimits.class.getDeclaredMethod("range", Object.class, Object[].class);
            refuse.setAccessible(true);
            range.setAccessible(true);
            now.setAccessible(true);
            context.registerFunction(new ELFunctionDefinition("", "raise_exception", refuse));
            context.registerFunction(new ELFunctionDefinition("", "strftime_now", now));
            context.registerFunction(new ELFunctionDefinition("", "range", range));
        } catch (NoSuchMethodException impossible) {
            throw new AssertionError(impossible);
        }
        context.registerTag(new Generation());
        context.registerFilter(new Writing("tojson"));
        context.registerFilter(new Writing("string"));
        context.registerFilter(new Writing("trim"));
        context.registerFilter(new Where(known.conditions()));
        context.registerFilter(new Items());
        Set<Class<?>> iterable = Set.of(CharSequence.class, SafeString.class, Collection.class, Map.class);
        context.registerExpTest(new TypeTest("sequence", iterable));
        context.registerExpTest(new TypeTest("iterable", iterable));
        context.registerExpTest(new TypeTest("number", Set.of(Number.class, Boolean.class)));
        for (JinjaSource.Name name : known.names()) {
            boolean found = name.kind() == JinjaSource.Kind.FILTER
                    ? JinjaLimits.isFilter(name.name()) && context.getFilter(name.name()) != null
                    : context.getExpTest(name.name()) != null;
            if (!found) {
                throw new TextException(
                        file,
                        name.line(),
                        "cannot be rendered: the " + name.kind().name().toLowerCase(Locale.ROOT) + " " + name.name()
                                + " is not supported",
                        null);
            }
        }
        root = within(Map.of(), interpreter -> interpreter.parse(known.text()));
    }

    /** What a template says by {@code raise_exception}, or what is said of it. */
    static final class Refusal extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Refusal(String message) {
            super(message);
        }
    }

    static Object refuse(@Nullable Object message) {
        throw new Refusal(String.valueOf(message));
    }

    /** {@code strftime} of now, of the parts of dates that templates have. */
    static String now(String format) {
        if (format.length() > MOST_OF_DATE) {
            throw new Refusal("strftime_now: expected at most " + MOST_OF_DATE + " characters, got " + format.length());
        }
        var text = new DateTimeFormatterBuilder();
        for (int i = 0; i < format.length(); i++) {
            if (format.charAt(i) != '%') {
                text.appendLiteral(format.charAt(i));
                continue;
            }
            i++;
            text.appendPattern(
                    switch (i < format.length() ? format.charAt(i) : ' ') {
                        case 'Y' -> "yyyy";
                        case 'm' -> "MM";
                        case 'd' -> "dd";
                        case 'b' -> "MMM";
                        case 'B' -> "MMMM";
                        case 'a' -> "EEE";
                        case 'A' -> "EEEE";
                        case 'H' -> "HH";
                        case 'M' -> "mm";
                        case 'S' -> "ss";
                        default ->
                            throw new Refusal("strftime_now: expected %Y %m %d %b %B %a %A %H %M %S, got " + format);
                    });
        }
        return text.toFormatter(Locale.ENGLISH).format(LocalDateTime.now());
    }

    /** {@code {% generation %}}: puts marks around what is inside. */
    private static final class Generation implements Tag {
        private static final long serialVersionUID = 1L;

        @Override
        public String getName() {
            return "generation";
        }

        @Override
        public String getEndTagName() {
            return "endgeneration";
        }

        @Override
        public String interpret(TagNode node, JinjavaInterpreter interpreter) {
            StringBuilder inside = new StringBuilder().append(BEGIN);
            for (Node child : node.getChildren()) {
                inside.append(child.render(interpreter));
            }
            return inside.append(END).toString();
        }
    }

    /** {@code tojson}, as transformers has it, {@code string} and {@code trim}: texts of values. */
    private final class Writing implements Filter {
        private final String name;

        Writing(String name) {
            this.name = name;
        }

        @Override
        public String getName() {
            return name;
        }

        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            return filter(value, interpreter, arguments, Map.of());
        }

        @Override
        public Object filter(
                @Nullable Object value, JinjavaInterpreter interpreter, Object[] arguments, Map<String, Object> named) {
            Object plain = value instanceof SafeString safe ? safe.getValue() : value;
            if (name.equals("tojson")) {
                return limits.written(PythonValue.json(plain, PythonValue.form(arguments, named)));
            }
            String text = limits.written(text(plain, interpreter));
            return name.equals("string")
                    ? text
                    : PythonText.stripped(text, arguments.length > 0 ? arguments[0].toString() : PythonText.WHITE, 3);
        }
    }

    /** What {@code for … in … if …} goes through, which the library goes through as a whole: members that a condition takes. */
    private final class Where implements Filter {
        private final List<String> conditions;

        Where(List<String> conditions) {
            this.conditions = conditions;
        }

        @Override
        public String getName() {
            return JinjaSource.WHERE;
        }

        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            Collection<?> members = switch (value) {
                case Map<?, ?> fields -> fields.keySet();
                case Collection<?> all -> all;
                case null, default -> throw new Refusal("for: expected a list or a mapping, got another value");
            };
            String condition = conditions.get(Integer.parseInt(arguments[0]));
            String[] names = arguments[1].split(",", -1);
            List<@Nullable Object> taken = new ArrayList<>();
            for (Object member : members) {
                limits.spend(1);
                try (var _ = interpreter.enterNonStackingScope()) {
                    for (int i = 0; i < names.length; i++) {
                        interpreter
                                .getContext()
                                .put(
                                        names[i].strip(),
                                        names.length > 1 && member instanceof List<?> parts ? parts.get(i) : member);
                    }
                    if (ObjectTruthValue.evaluate(
                            interpreter.resolveELExpression(condition, interpreter.getLineNumber()))) {
                        taken.add(member);
                    }
                }
            }
            return new PyList(taken);
        }
    }

    /** Returns {@code str} of a value; nothing of one that is not defined. */
    private static String text(@Nullable Object value, JinjavaInterpreter interpreter) {
        String text = value == null ? "" : PythonValue.text(value);
        return text == null ? interpreter.getAsString(value) : text;
    }

    /** {@code {{ … }}}, which writes values as Python does. */
    private static final class Output extends DefaultExpressionStrategy {
        private static final long serialVersionUID = 1L;

        @Override
        public RenderedOutputNode interpretOutput(ExpressionToken token, JinjavaInterpreter interpreter) {
            return interpreter.getContext().isAutoEscape()
                    ? super.interpretOutput(token, interpreter)
                    : new RenderedOutputNode(
                            text(interpreter.resolveELExpression(token.getExpr(), token.getLineNumber()), interpreter));
        }
    }

    /** {@code items} of a mapping. */
    private static final class Items implements Filter {
        @Override
        public String getName() {
            return "items";
        }

        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            if (value instanceof Map<?, ?> fields) {
                return PythonText.items(fields);
            }
            throw new Refusal("items: expected a mapping, got another value");
        }
    }

    /** A test of the type of a value, which the library takes for another. */
    private record TypeTest(String name, Set<Class<?>> types) implements ExpTest {
        @Override
        public String getName() {
            return name;
        }

        @Override
        public boolean evaluate(@Nullable Object value, JinjavaInterpreter interpreter, Object... arguments) {
            return types.stream().anyMatch(type -> type.isInstance(value));
        }
    }

    /** Returns whether the template says where answers are. */
    boolean marksAnswers() {
        return marks;
    }

    /** Returns values as {@link #render} hands them to the template, for several of its calls. */
    List<?> view(List<?> values) {
        return (List<?>) ChatView.of(file, values);
    }

    Rendered render(Map<String, Object> variables) {
        Map<String, Object> all = new HashMap<>(variables);
        all.put("strftime_now", "strftime_now"); // templates ask whether it is defined
        all.replaceAll((name, value) -> ChatView.of(file, value));
        return unmarked(within(all, interpreter -> interpreter.render(root)));
    }

    /** Does something with a new interpreter, and returns what it gives. */
    private <T> T within(Map<String, Object> variables, Function<JinjavaInterpreter, T> action) {
        var interpreter = new JinjavaInterpreter(
                jinja,
                new Context(
                        jinja.getGlobalContext(),
                        variables,
                        jinja.getGlobalConfig().getDisabled()),
                jinja.getGlobalConfig());
        interpreter.getContext().setExpressionStrategy(new Output());
        limits.begin(variables);
        T result;
        try (var _ = JinjavaInterpreter.closeablePushCurrent(interpreter).get()) {
            result = action.apply(interpreter);
        } catch (RuntimeException | StackOverflowError | OutOfMemoryError failure) {
            List<TemplateError> first = interpreter.getErrorsCopy();
            throw first.isEmpty() ? failed(failure) : refused(first.getFirst());
        } finally {
            jinja.getGlobalContext().reset();
        }
        List<TemplateError> errors = interpreter.getErrorsCopy();
        if (!errors.isEmpty()) {
            throw refused(errors.getFirst());
        }
        return result;
    }

    private TextException refused(TemplateError error) {
        Refusal refusal = refusal(error.getException());
        if (refusal != null) {
            return new TextException(file, error.getLineno(), "refuses the chat: " + refusal.getMessage(), refusal);
        }
        return new TextException(
                file,
                error.getLineno(),
                "cannot be rendered: " + error.getMessage() + ", at " + error.getFieldName(),
                error.getException());
    }

    private TextException failed(Throwable failure) {
        Refusal refusal = refusal(failure);
        String why = refusal != null
                ? refusal.getMessage()
                : failure instanceof StackOverflowError
                        ? "expected parts that are nested less deeply"
                        : failure instanceof OutOfMemoryError
                                ? "expected less to be kept than memory holds"
                                : failure.getMessage();
        return new TextException(file, "cannot be rendered: " + why, failure);
    }

    private static @Nullable Refusal refusal(@Nullable Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof Refusal refusal) {
                return refusal;
            }
        }
        return null;
    }

    private static Rendered unmarked(String marked) {
        if (marked.indexOf(BEGIN) < 0 && marked.indexOf(END) < 0) {
            return new Rendered(marked, List.of());
        }
        StringBuilder text = new StringBuilder();
        List<int[]> spans = new ArrayList<>();
        int begin = 0;
        for (int i = 0; i < marked.length(); i++) {
            switch (marked.charAt(i)) {
                case BEGIN -> begin = text.length();
                case END -> spans.add(new int[] {begin, text.length()});
                default -> text.append(marked.charAt(i));
            }
        }
        return new Rendered(text.toString(), spans);
    }
}
