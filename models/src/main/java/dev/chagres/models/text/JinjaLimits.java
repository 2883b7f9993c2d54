package dev.chagres.models.text;

import com.hubspot.jinjava.Jinjava;
import com.hubspot.jinjava.interpret.Context;
import com.hubspot.jinjava.interpret.JinjavaInterpreter;
import com.hubspot.jinjava.interpret.TemplateError;
import com.hubspot.jinjava.lib.filter.Filter;
import com.hubspot.jinjava.lib.tag.ForTag;
import com.hubspot.jinjava.objects.collections.PyList;
import com.hubspot.jinjava.objects.collections.PyMap;
import com.hubspot.jinjava.tree.TagNode;
import com.hubspot.jinjava.util.ForLoop;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
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

    /** The same for each message and tool more. */
    private static final long STEPS_OF_MESSAGE = 1_000;

    /** Most numbers of a {@code range}, as in Jinja's sandbox. */
    private static final long RANGE = 100_000;

    /** Most characters of a text, and of what is rendered. */
    static final int TEXT = 1 << 25;

    /** Most members of a list or mapping that a template makes. */
    static final int MEMBERS = 1 << 20;

    /** Most calls of macros inside each other. */
    static final int MACROS = 50;

    /** Largest number that a filter is given: it may be a width. */
    static final int WIDTH = 1_000;

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

    /** Filters whose first argument names another filter. */
    private static final String MAP = "map";

    /** Filters that are given the name of a test, and where it stands among their arguments. */
    private static final Map<String, Integer> TESTING =
            Map.of("select", 0, "reject", 0, "selectattr", 1, "rejectattr", 1);

    /** Functions and tags of the library that Jinja lacks. */
    private static final Set<String> OTHER_FUNCTIONS = Set.of(
            ":datetimeformat",
            ":format_date",
            ":format_datetime",
            ":format_time",
            ":strtodate",
            ":strtotime",
            ":today",
            ":truncate",
            ":type",
            ":unixtimestamp");

    private static final Set<String> OTHER_TAGS =
            Set.of("cycle", "ifchanged", "endifchanged", "print", "unless", "endunless");

    /** What the library has and Jinja lacks, which a template cannot reach by any name. */
    static final Map<Context.Library, Set<String>> DISABLED = Map.of(
            Context.Library.FILTER, otherFilters(),
            Context.Library.FUNCTION, OTHER_FUNCTIONS,
            Context.Library.TAG, OTHER_TAGS);

    /** Most bits of a whole number that a product or power gives. */
    private static final int BITS = 1 << 12;

    /** Those of the template that a thread renders, for functions, which the library calls without it. */
    private static final ThreadLocal<JinjaLimits> CURRENT = new ThreadLocal<>();

    private long left;
    /** Members of the loops that run, the innermost first. */
    private final Deque<List<?>> running = new ArrayDeque<>();

    /** Gives a context these limits. */
    void limit(Context context) {
        context.registerTag(new Loop());
        for (String name : WIDE) {
            context.registerFilter(new Bounded(context.getFilter(name)));
        }
        context.registerFilter(new Naming(context.getFilter(MAP)));
        for (String name : TESTING.keySet()) {
            context.registerFilter(new Naming(context.getFilter(name)));
        }
        context.registerFilter(new Replacing(context.getFilter("replace")));
        context.registerFilter(new Summing(context.getFilter("sum")));
    }

    /** Counts what a filter is given: 256 characters, or members, are a step. */
    void use(Filter filter, Object[] arguments) {
        if (!isFilter(filter.getName()) && !filter.getName().equals(JinjaSource.WHERE)) {
            throw new JinjaTemplate.Refusal("the filter " + filter.getName() + " is not supported");
        }
        Object value = arguments.length == 0 ? null : arguments[0];
        spend(value instanceof CharSequence text ? text.length() / 256 : 0);
        spendOn(value);
    }

    /** Counts what goes through a value: 256 members, also those inside of members, are a step. */
    void spendOn(@Nullable Object value) {
        spend(1 + size(value, 256 * left + 256) / 256);
    }

    /** Returns how many members a value has, with itself, or a number above {@code most}; one that a list has twice is counted twice. */
    private static long size(@Nullable Object value, long most) {
        Object inside = value instanceof PyList list ? list.toList() : value instanceof PyMap map ? map.toMap() : value;
        if (inside instanceof ChatView.Counted counted) {
            return counted.members();
        }
        long size = 1;
        Collection<?> members = switch (value) {
            case Collection<?> all -> all;
            case Map<?, ?> fields -> fields.values();
            case null, default -> List.of();
        };
        for (Object member : members) {
            size += size(member, most - size);
            if (size > most) {
                break;
            }
        }
        return size;
    }

    /** Counts a list or mapping that an expression makes, and returns it: a list of two lists, each of two, has no end soon. */
    static Object made(Object value) {
        JinjaLimits limits = CURRENT.get();
        if (limits != null) {
            limits.spendOn(value);
        }
        return value;
    }

    /** Returns a number that a product or power has given, unless it is too long. */
    static @Nullable Object bounded(@Nullable Object number) {
        int bits = switch (number) {
            case BigInteger whole -> whole.bitLength();
            case BigDecimal real -> real.unscaledValue().bitLength() + Math.abs(real.scale());
            case null, default -> 0;
        };
        if (bits > BITS) {
            throw new JinjaTemplate.Refusal("expected numbers of up to " + BITS + " bits, got one of " + bits);
        }
        return number;
    }

    private static Set<String> otherFilters() {
        Set<String> filters = new HashSet<>();
        new Jinjava().getGlobalContext().getAllFilters().forEach(filter -> filters.add(filter.getName()));
        filters.removeAll(FILTERS);
        return filters;
    }

    static boolean isFilter(String name) {
        return FILTERS.contains(name);
    }

    /** Begins anew, for a chat of so many messages and tools. */
    void begin(Map<String, Object> variables) {
        CURRENT.set(this);
        left = STEPS + STEPS_OF_MESSAGE * (count(variables.get("messages")) + count(variables.get("tools")));
    }

    private static int count(@Nullable Object value) {
        return value instanceof Collection<?> all ? all.size() : 0;
    }

    /** Counts a text that a filter has written or a method reads, and returns it: 1,024 characters are a step. */
    String written(String text) {
        spend(1 + text.length() / 1024);
        return text;
    }

    /** Counts a step, which is not begun where one before it failed. */
    void step(JinjavaInterpreter interpreter) {
        Optional<TemplateError> failed = interpreter.getLastError();
        if (failed.isPresent()) {
            throw new JinjaTemplate.Refusal("what is before it failed"); // the first error is told
        }
        spend(1);
    }

    /** Returns the member before or behind that at which a running loop is; null where there is none. */
    @Nullable
    Object neighbour(ForLoop loop, int distance) {
        for (List<?> members : running) {
            int place = loop.getIndex0() + distance;
            if (members.size() == loop.getLength()) {
                return place >= 0 && place < members.size() ? members.get(place) : null;
            }
        }
        return null;
    }

    void spend(long steps) {
        left -= steps;
        if (left < 0) {
            throw new JinjaTemplate.Refusal("expected a template that ends after " + STEPS + " steps and "
                    + STEPS_OF_MESSAGE + " for each message and tool, got one that goes on");
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
        CURRENT.get().spend(1 + all.size() / 64);
        return all;
    }

    /** {@code for}, whose rounds are counted whether they have something inside or not. */
    private final class Loop extends ForTag {
        private static final long serialVersionUID = 1L;

        @Override
        public String renderForCollection(
                TagNode node, JinjavaInterpreter interpreter, List<String> names, @Nullable Object collection) {
            List<?> members = switch (collection) {
                case Collection<?> all -> new ArrayList<>(all);
                case Map<?, ?> all -> new ArrayList<>(all.keySet());
                case null, default -> List.of();
            };
            spend(Math.max(1, members.size()));
            running.push(members);
            try {
                return super.renderForCollection(node, interpreter, names, collection);
            } finally {
                running.pop();
            }
        }
    }

    /** A filter in place of the library's of the same name, which it asks. */
    private interface Around extends Filter {
        Filter filter();

        @Override
        default String getName() {
            return filter().getName();
        }
    }

    /** A filter that is given the name of another filter or of a test, which the library would pass over if it did not know it. */
    private record Naming(Filter filter) implements Around {
        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            return filter(value, interpreter, (Object[]) arguments, Map.of());
        }

        @Override
        public Object filter(
                @Nullable Object value, JinjavaInterpreter interpreter, Object[] arguments, Map<String, Object> named) {
            boolean maps = getName().equals(MAP);
            int place = TESTING.getOrDefault(getName(), 0);
            String name = arguments.length > place ? String.valueOf(arguments[place]) : null;
            if (name != null
                    && !(maps ? isFilter(name) : interpreter.getContext().getExpTest(name) != null)) {
                throw new JinjaTemplate.Refusal(
                        getName() + ": the " + (maps ? "filter " : "test ") + name + " is not supported");
            }
            return filter.filter(value, interpreter, arguments, named);
        }
    }

    /** {@code replace}, which makes no text that is too long. */
    private record Replacing(Filter filter) implements Around {
        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            if (value instanceof CharSequence text && arguments.length >= 2) {
                PythonText.ensureReplaceable(text.toString(), arguments[0], arguments[1]);
            }
            return filter.filter(value, interpreter, arguments);
        }
    }

    /** {@code sum}, which gives the numbers that additions give. */
    private record Summing(Filter filter) implements Around {
        @Override
        public @Nullable Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            Object sum = filter.filter(value, interpreter, arguments);
            bounded(sum);
            if (!(sum instanceof BigDecimal real)) {
                return sum;
            }
            boolean isWhole = real.signum() == 0
                    || real.scale() <= 0
                    || real.stripTrailingZeros().scale() <= 0;
            return isWhole && real.toBigInteger().bitLength() < Long.SIZE
                    ? (Object) real.longValue()
                    : (Object) real.doubleValue();
        }
    }

    /** A filter that is given no large numbers, by which the library would make large texts and lists. */
    private record Bounded(Filter filter) implements Around {
        @Override
        public Object filter(@Nullable Object value, JinjavaInterpreter interpreter, String... arguments) {
            ensureNumber(getName(), value);
            check(Arrays.asList(arguments));
            return filter.filter(value, interpreter, arguments);
        }

        @Override
        public Object filter(
                @Nullable Object value, JinjavaInterpreter interpreter, Object[] arguments, Map<String, Object> named) {
            ensureNumber(getName(), value);
            check(Arrays.asList(arguments));
            check(named.values());
            return filter.filter(value, interpreter, arguments, named);
        }

        private static void ensureNumber(String name, @Nullable Object value) {
            if (name.equals("round") && !(value instanceof Number)) {
                throw new JinjaTemplate.Refusal("round: expected a number, got another value");
            }
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
