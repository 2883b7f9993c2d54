package dev.chagres.estimate;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dev.chagres.internal.Checks;
import dev.chagres.ops.ActivityRecord;
import dev.chagres.ops.ActivityRecord.Kind;
import java.io.IOException;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.ToLongFunction;

/**
 * What a {@link KernelTrace} has recorded: times of kernels, of the layers that enqueued them, and of collectives that nothing hides.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the "Trace Event Format" of Chromium for {@link #write}.
 */
public final class KernelTimes {
    private static final double MICROS = 1e3;
    private static final double MILLIS = 1e6;
    private static final double MIB = 1 << 20;
    /** Threads of the trace: streams have the numbers of CUPTI above it. */
    private static final int HOST_THREADS = 100_000;

    /**
     * The calls of one name.
     *
     * @param name of the kernel, copy or fill, or of the layer
     * @param calls how many there were
     * @param millis of all of them together
     * @param share of the time of all
     */
    public record Row(String name, long calls, double millis, double share) {
        /** Checks that the name is there. */
        public Row {
            Checks.given("name", name);
        }
    }

    /**
     * How much memory a pass held where a layer's call began or ended.
     *
     * @param device its index
     * @param nanos by the clock of the records
     * @param bytes as {@code scope.usedBytes()} has them
     */
    public record Memory(int device, long nanos, long bytes) {}

    private final KernelTrace.Source source;
    private final String reason;
    private final List<ActivityRecord> work;
    private final Map<Long, ActivityRecord> ranges = new LinkedHashMap<>();
    private final long dropped;
    private final List<Memory> memory;

    KernelTimes(KernelTrace.Source source, String reason, ActivityRecord.Recording recorded, List<Memory> memory) {
        this.source = source;
        this.reason = reason;
        this.dropped = recorded.dropped();
        this.memory = List.copyOf(memory);
        List<ActivityRecord> kernels = new ArrayList<>();
        for (ActivityRecord each : recorded.records()) {
            if (each.kind() != Kind.RANGE) {
                kernels.add(each);
            } else if (each.end() > 0) {
                ranges.put(each.number(), each);
            }
        }
        work = List.copyOf(kernels);
    }

    /** NCCL's kernels have this beginning in all versions. */
    private static boolean isCollective(ActivityRecord record) {
        return record.kind() == Kind.KERNEL && record.name().startsWith("nccl");
    }

    /** Returns who told the times. */
    public KernelTrace.Source source() {
        return source;
    }

    /** Returns who told the times and, where there are no kernels, why. */
    public String explain() {
        return reason;
    }

    /** Returns how many records were lost for want of room: times are then too small. */
    public long dropped() {
        return dropped;
    }

    /** Returns how many kernels, copies and fills ran. */
    public int count() {
        return work.size();
    }

    /**
     * Returns the names that took most time, the slowest first: of kernels, copies and fills; without kernels those of {@link #layers}.
     *
     * @param count how many at most
     */
    public List<Row> slowest(int count) {
        if (source == KernelTrace.Source.HOST) {
            return layers().stream().limit(count).toList();
        }
        Map<String, Sum> sums = new TreeMap<>();
        work.forEach(each -> add(sums, each.name(), each.nanos()));
        return rows(sums).stream().limit(count).toList();
    }

    /** Returns the time of each layer, those inside not counted again, the slowest first; its name has {@code " backward"} behind it. */
    public List<Row> layers() {
        Map<String, Sum> sums = new TreeMap<>();
        if (source == KernelTrace.Source.CUPTI) {
            for (ActivityRecord each : work) {
                ActivityRecord range = ranges.get(each.range());
                add(sums, range == null ? "(outside of layers)" : range.name(), each.nanos());
            }
            return rows(sums);
        }
        Map<Long, Long> inside = new HashMap<>();
        ranges.values().forEach(each -> inside.merge(each.range(), each.nanos(), Long::sum));
        for (ActivityRecord each : ranges.values()) {
            add(sums, each.name(), Math.max(0, each.nanos() - inside.getOrDefault(each.number(), 0L)));
        }
        return rows(sums);
    }

    private static void add(Map<String, Sum> sums, String name, long nanos) {
        Sum sum = sums.computeIfAbsent(name, _ -> new Sum());
        sum.calls++;
        sum.nanos += nanos;
    }

    private static final class Sum {
        private long calls;
        private long nanos;
    }

    private static List<Row> rows(Map<String, Sum> sums) {
        double all = sums.values().stream().mapToLong(sum -> sum.nanos).sum();
        return sums.entrySet().stream()
                .map(each -> new Row(
                        each.getKey(),
                        each.getValue().calls,
                        each.getValue().nanos / MILLIS,
                        all == 0 ? 0 : each.getValue().nanos / all))
                .sorted(Comparator.comparingDouble(Row::millis).reversed())
                .toList();
    }

    /** Returns the share of the devices' time, from their first to their last kernel, in which a collective runs and nothing else; 0 without kernels. */
    public double exposedCommunication() {
        return share(each -> {
            // What only collectives cover is what is left without the others.
            List<ActivityRecord> others =
                    each.stream().filter(one -> !isCollective(one)).toList();
            return covered(each) - covered(others);
        });
    }

    /** Returns the share of the devices' time, from their first to their last kernel, in which any kernel, copy or fill runs; 0 without kernels. */
    public double busy() {
        return share(KernelTimes::covered);
    }

    /** Returns the share of the devices' time that {@code nanos} counts of the records of a device. */
    private double share(ToLongFunction<List<ActivityRecord>> nanos) {
        Map<Integer, List<ActivityRecord>> byDevice = new TreeMap<>();
        work.forEach(each ->
                byDevice.computeIfAbsent(each.device(), _ -> new ArrayList<>()).add(each));
        double counted = 0;
        double all = 0;
        for (List<ActivityRecord> each : byDevice.values()) {
            long first = each.stream().mapToLong(ActivityRecord::begin).min().orElse(0);
            long last = each.stream().mapToLong(ActivityRecord::end).max().orElse(0);
            counted += nanos.applyAsLong(each);
            all += last - first;
        }
        return all == 0 ? 0 : counted / all;
    }

    /** Returns the nanoseconds in which one of the records runs, or more. */
    private static long covered(List<ActivityRecord> records) {
        List<ActivityRecord> ordered = records.stream()
                .sorted(Comparator.comparingLong(ActivityRecord::begin))
                .toList();
        long covered = 0;
        long until = Long.MIN_VALUE;
        for (ActivityRecord each : ordered) {
            long begin = Math.max(each.begin(), until);
            if (each.end() > begin) {
                covered += each.end() - begin;
                until = each.end();
            }
        }
        return covered;
    }

    /** Returns whether a kernel was a collective of NCCL. */
    public boolean hasCollectives() {
        return work.stream().anyMatch(KernelTimes::isCollective);
    }

    /** Returns who told the times, and how many records there are. */
    @Override
    public String toString() {
        return "KernelTimes(" + source + ", " + work.size() + " kernels and copies, " + ranges.size() + " ranges)";
    }

    /**
     * Writes everything as JSON in UTF-8, which https://ui.perfetto.dev opens: a process for the host's ranges and one for each device, with its
     * streams; the stream stays open.
     *
     * @throws IOException when the stream throws it
     */
    public void write(OutputStream to) throws IOException {
        JsonGenerator json = new JsonFactory()
                .createGenerator(Checks.given("to", to))
                .disable(JsonGenerator.Feature.AUTO_CLOSE_TARGET);
        json.writeStartObject();
        json.writeArrayFieldStart("traceEvents");
        long origin = origin();
        name(json, 0, "host: ranges of layers");
        for (int device : work.stream()
                .mapToInt(ActivityRecord::device)
                .distinct()
                .sorted()
                .toArray()) {
            name(json, device + 1, "device " + device + ": kernels, copies and fills by stream");
        }
        for (ActivityRecord each : ranges.values()) {
            slice(json, each, 0, HOST_THREADS + each.stream(), origin);
        }
        for (ActivityRecord each : work) {
            slice(json, each, each.device() + 1, each.stream(), origin);
        }
        for (Memory each : memory) {
            json.writeStartObject();
            json.writeStringField("name", "memory of the pass");
            json.writeStringField("ph", "C");
            json.writeNumberField("pid", each.device() + 1);
            json.writeNumberField("ts", (each.nanos() - origin) / MICROS);
            json.writeObjectFieldStart("args");
            json.writeNumberField("MiB", each.bytes() / MIB);
            json.writeEndObject();
            json.writeEndObject();
        }
        json.writeEndArray();
        json.writeStringField("displayTimeUnit", "ms");
        json.writeEndObject();
        json.close();
    }

    private long origin() {
        long first = Long.MAX_VALUE;
        for (ActivityRecord each : work) {
            first = Math.min(first, each.begin());
        }
        for (ActivityRecord each : ranges.values()) {
            first = Math.min(first, each.begin());
        }
        return first == Long.MAX_VALUE ? 0 : first;
    }

    private static void name(JsonGenerator json, int process, String name) throws IOException {
        json.writeStartObject();
        json.writeStringField("name", "process_name");
        json.writeStringField("ph", "M");
        json.writeNumberField("pid", process);
        json.writeObjectFieldStart("args");
        json.writeStringField("name", name);
        json.writeEndObject();
        json.writeEndObject();
    }

    private void slice(JsonGenerator json, ActivityRecord each, int process, long thread, long origin)
            throws IOException {
        json.writeStartObject();
        json.writeStringField("name", each.name());
        json.writeStringField(
                "cat", each.kind() == Kind.RANGE ? "layer" : isCollective(each) ? "collective" : "device");
        json.writeStringField("ph", "X");
        json.writeNumberField("pid", process);
        json.writeNumberField("tid", thread);
        json.writeNumberField("ts", (each.begin() - origin) / MICROS);
        json.writeNumberField("dur", each.nanos() / MICROS);
        ActivityRecord inside = ranges.get(each.range());
        if (each.kind() != Kind.RANGE && inside != null) {
            json.writeObjectFieldStart("args");
            json.writeStringField("layer", inside.name());
            json.writeEndObject();
        }
        json.writeEndObject();
    }

    /** Returns the memory of observed passes, in the order of each pass. */
    public List<Memory> memory() {
        return memory;
    }
}
