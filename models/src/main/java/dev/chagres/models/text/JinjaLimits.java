package dev.chagres.models.text;

import com.hubspot.jinjava.interpret.Context;
import com.hubspot.jinjava.interpret.JinjavaInterpreter;
import com.hubspot.jinjava.interpret.TemplateError;
import com.hubspot.jinjava.lib.filter.Filter;
import com.hubspot.jinjava.lib.tag.ForTag;
import com.hubspot.jinjava.tree.TagNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * How much a template may do, so that each ends: templates come from others.
 *
 * <p>Threading: one thread at a time.
 */
final class JinjaLimits {
    /** Most tags, expressions, texts and rounds of loops that are rendered, for a chat without messages. */
    private static final long STEPS = 100_000;

    /** The same for each message more. */
    private static final long STEPS_OF_MESSAGE = 1_000;

    /** Most numbers of a {@code range}, as in Jinja's sandbox. */
    private static final long RANGE = 100_000;

    /** Most characters of a text, and of what is rendered. */
    static final int TEXT = 1 << 25;

    /** Most members of a list or mapping that a template makes. */
    static final int MEMBERS = 1 << 20;

    /** Largest number that a filter is given: it may be a width. */
    private static final int WIDTH = 1_000;

    /** Filters of Jinja that have the same meaning here. The library has others, which read files, hash or draw. */
    private static final Set<String> FILTERS =
            Set.of(("abs attr batch capitalize center count d default dictsort e escape first float forceescape groupby"
                            + " indent int items join last length list lower map max min reject rejectattr replace"
                            + " reverse round safe select selectattr slice sort string striptags sum title tojson trim"
                            + " truncate unique upper urlencode wordcount wordwrap")
                    .split(" "));

    /** Those of them that are given widths. */
    private static final List<String> WIDE =
            List.of("batch", "center", "indent", "round", "slice", "truncate", "wordwrap");

    private long left;

    /** Gives a context these limits. */
    void limit(Context context) {
        context.registerTag(new Loop());
        for (String name : WIDE) {
            context.registerFilter(new Bounded(context.getFilter(name)));
        }
    }

    static boolean isFilter(String name) {
        return FILTERS.contains(name);
    }

    /** Begins anew, for a chat of so many messages. */
    void begin(Map<String, Object> variables) {
        int messages = variables.get("messages") instanceof Collection<?> all ? all.size() : 0;
        left = STEPS + STEPS_OF_MESSAGE * messages;
    }

    /** Counts a step, which is not begun where one before it failed. */
    void step(JinjavaInterpreter interpreter) {
        Optional<TemplateError> failed = interpreter.getLastError();
        if (failed.isPresent()) {
            throw new JinjaTemplate.Refusal("what is before it failed"); // the first error is told
        }
        spend(1);
    }

    private void spend(long steps) {
        left -= steps;
        if (left < 0) {
            throw new JinjaTemplate.Refusal("expected a template that ends after " + STEPS + " steps and "
                    + STEPS_OF_MESSAGE + " for each message, got one that goes on");
        }
    }

    /** {@code range}, with Python's arguments. */
    static List<Long> range(@Nullable Object first, Object... others) {
        long[] numbers = new long[1 + others.length];
        for (int i = 0; i < numbers.length; i++) {
            Object argument = i == 0 ? first : others[i - 1];
            if (!(argument instanceof Number number) || number.doubleValue() != number.longValue()) {
                throw new JinjaTemplate.Refusal("range: expected integers, got " + argument);
            }
            numbers[i] = number.longValue();
        }
        if (numbers.length > 3 || (numbers.length == 3 && numbers[2] == 0)) {
            throw new JinjaTemplate.Refusal("range: expected an end, or a begin, an end and a step that is not 0, got "
                    + Arrays.toString(numbers));
        }
        long begin = numbers.length == 1 ? 0 : numbers[0];
        long end = numbers.length == 1 ? numbers[0] : numbers[1];
        long step = numbers.length == 3 ? numbers[2] : 1;
        List<Long> all = new ArrayList<>();
        if (Math.abs((double) end - begin) / Math.abs((double) step) > RANGE && step > 0 == end > begin) {
            throw new JinjaTemplate.Refusal(
                    "range: expected at most " + RANGE + " numbers, got " + Arrays.toString(numbers));
        }
        for (long i = begin; step > 0 ? i < end : i > end; i += step) {
            all.add(i);
            if (step > 0 ? i > Long.MAX_VALUE - step : i < Long.MIN_VALUE - step) {
                break;
            }
        }
        return all;
    }

    /** {@code for}, whose rounds are counted whether they have something inside or not. */
    private final class Loop extends ForTag {
        private static final long serialVersionUID = 1L;

        @Override
        public String renderForCollection(
                TagNode node, JinjavaInterpreter interpreter, List<String> names, @Nullable Object collection) {
            spend(
                    switch (collection) {
                        case Collection<?> all -> all.size();
                        case Map<?, ?> all -> all.size();
                        case null, default -> 1;
                    });
            return super.renderForCollection(node, interpreter, names, collection);
        }
    }

    /** A filter that is given no large numbers, by which the library would make large texts and lists. */
    private record Bounded(Filter filter) implements Filter {
        @Override
        public String getName() {
            return filter.getName();
        }

        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            check(Arrays.asList(arguments));
            return filter.filter(value, interpreter, arguments);
        }

        @Override
        public Object filter(
                @Nullable Object value, JinjavaInterpreter interpreter, Object[] arguments, Map<String, Object> named) {
            check(Arrays.asList(arguments));
            check(named.values());
            return filter.filter(value, interpreter, arguments, named);
        }

        private void check(Collection<?> arguments) {
            for (Object argument : arguments) {
                double number;
                try {
                    number = Double.parseDouble(String.valueOf(argument));
                } catch (NumberFormatException other) {
                    continue;
                }
                if (!(Math.abs(number) <= WIDTH)) {
                    throw new JinjaTemplate.Refusal(
                            getName() + ": expected numbers up to " + WIDTH + ", got " + argument);
                }
            }
        }
    }
}
