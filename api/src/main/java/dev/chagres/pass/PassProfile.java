package dev.chagres.pass;

import dev.chagres.Device;
import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.pass.PassObserver.Direction;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/**
 * Measures the calls of layers: time on the device, time on the host, and memory kept for backward, for each layer in each
 * place where it is called.
 *
 * {@snippet file="dev/chagres/TrainingExamplesTest.java" region="observers"}
 *
 * <p>Time on the device is measured with events, which are reused once they are done: nothing waits before {@link #rows()}, and steps that
 * repeat their calls make no garbage. Recording events takes host time, so small layers seem slower than they are. Times of a layer include
 * those of the layers inside it.
 *
 * <p>Threading: the device's thread.
 */
public final class PassProfile implements PassObserver, AutoCloseable {
    private static final double BYTES_PER_MIB = 1 << 20;

    /**
     * The measurements of a layer, as means over its calls.
     *
     * @param layer its name
     * @param depth number of layers that this one is called inside
     * @param forwards number of forward calls, those of recomputation included
     * @param backwards number of backward calls
     * @param forwardMillis device time of a forward call
     * @param backwardMillis device time of a backward call
     * @param hostForwardMillis host time of a forward call, until all its work is enqueued
     * @param hostBackwardMillis host time of a backward call, likewise
     * @param keptBytes the most memory that one forward call has kept for backward, without its own output
     */
    public record Row(
            String layer,
            int depth,
            long forwards,
            long backwards,
            double forwardMillis,
            double backwardMillis,
            double hostForwardMillis,
            double hostBackwardMillis,
            long keptBytes) {
        /** Checks that the name is there. */
        public Row {
            Checks.given("layer", layer);
        }
    }

    /** One call, from its beginning until the device is done with it. */
    private static final class Call {
        private final Event begin;
        private final Event end;
        private @Nullable ProfilePlace place;
        private Direction direction = Direction.FORWARD;
        private long hostBegan;
        private long hostNanos;

        private Call(Device device) {
            begin = device.openEvent();
            end = device.openEvent();
        }

        private void begin(ProfilePlace where, Direction which, Stream stream) {
            place = where;
            direction = which;
            begin.record(stream);
            hostBegan = System.nanoTime();
        }

        private void end(Stream stream) {
            hostNanos = System.nanoTime() - hostBegan;
            end.record(stream);
        }

        private ProfilePlace place() {
            return Checks.given("place", place);
        }

        private void addUp() {
            place().add(direction, end.millisSince(begin), hostNanos);
        }
    }

    private final Device device;
    private final ProfilePlace top = new ProfilePlace(null, -1);
    private final List<Call> all = new ArrayList<>();
    private final List<Call> free = new ArrayList<>();
    /** Calls that have not ended, outermost first. */
    private final List<Call> open = new ArrayList<>();
    /** Calls that have ended on the host and perhaps not on the device, oldest first. */
    private final ArrayDeque<Call> unread = new ArrayDeque<>();

    private boolean closed;

    /** Makes an observer for passes on any stream of {@code device}. */
    public PassProfile(Device device) {
        this.device = Checks.given("device", device);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException when the pass is on another device
     * @throws IllegalStateException when this profile is closed
     */
    @Override
    public void entering(Layer layer, Direction direction, Pass pass) {
        Checks.given("layer", layer, "direction", direction, "pass", pass);
        if (closed) {
            throw new IllegalStateException("the pass profile is closed; call pass.forget(profile) before close()");
        }
        if (Inside.capture(pass.stream()) != null) {
            throw new CaptureException(
                    "pass profile: expected a pass that is not captured, since events of a graph have no"
                            + " times; call pass.forget(profile) before Stream.capture");
        }
        if (open.isEmpty()) {
            readWhatIsDone();
        }
        ProfilePlace outer = open.isEmpty() ? top : open.getLast().place();
        Call call = take();
        try {
            call.begin(outer.inside(layer), direction, pass.stream());
        } catch (RuntimeException | Error failure) {
            free.add(call);
            throw failure;
        }
        open.add(call);
    }

    @Override
    public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
        Checks.given("pass", pass);
        Call call = removeOpen(Checks.given("layer", layer));
        if (call != null) {
            call.end(pass.stream());
            call.place().kept(keptBytes);
            unread.add(call);
        }
    }

    @Override
    public void failed(Layer layer, Direction direction, Pass pass) {
        Call call = removeOpen(layer);
        if (call != null) {
            free.add(call);
        }
    }

    /** Returns null if observing began inside the call of {@code layer}. */
    private @Nullable Call removeOpen(Layer layer) {
        boolean known = !open.isEmpty() && open.getLast().place().layer == layer;
        return known ? open.removeLast() : null;
    }

    private Call take() {
        if (!free.isEmpty()) {
            return free.removeLast();
        }
        Call made = new Call(device);
        all.add(made);
        return made;
    }

    private void readWhatIsDone() {
        while (!unread.isEmpty() && unread.getFirst().end.isDone()) {
            readFirst();
        }
    }

    private void readFirst() {
        Call call = unread.removeFirst();
        free.add(call);
        call.addUp();
    }

    /**
     * Waits for the calls measured so far and returns a row for each layer in each place, before those inside it, in the order
     * of their first calls.
     */
    public List<Row> rows() {
        while (!unread.isEmpty()) {
            unread.getFirst().end.synchronize();
            readFirst();
        }
        List<Row> rows = new ArrayList<>();
        top.addRows(rows);
        return rows;
    }

    /** Waits as {@link #rows()} does and returns the rows as a table, layers inside others indented. */
    public String table() {
        List<Row> rows = rows();
        int width = rows.stream()
                .mapToInt(row -> 2 * row.depth + row.layer.length())
                .reduce("layer".length(), Math::max);
        StringBuilder text = new StringBuilder(String.format(
                Locale.ROOT,
                "%-" + width + "s %7s %11s %12s %16s %17s %10s",
                "layer",
                "calls",
                "forward ms",
                "backward ms",
                "host forward ms",
                "host backward ms",
                "kept MiB"));
        for (Row row : rows) {
            text.append(String.format(
                    Locale.ROOT,
                    "%n%-" + width + "s %7d %11.3f %12.3f %16.3f %17.3f %10.3f",
                    "  ".repeat(row.depth) + row.layer,
                    row.forwards,
                    row.forwardMillis,
                    row.backwardMillis,
                    row.hostForwardMillis,
                    row.hostBackwardMillis,
                    row.keptBytes / BYTES_PER_MIB));
        }
        return text.toString();
    }

    /** Discards the measurements so far, such as those of the first steps, in which kernels are built. */
    public void clear() {
        rows();
        top.clear();
    }

    /** Returns the device and how many calls of layers are not in a row yet; {@link #table} has the rows. */
    @Override
    public String toString() {
        return "PassProfile(" + device + ", calls=" + (all.size() - free.size()) + ")";
    }

    /** Frees the events. A second call does nothing. */
    @Override
    public void close() {
        closed = true;
        for (Call call : all) {
            call.begin.close();
            call.end.close();
        }
        all.clear();
        free.clear();
        open.clear();
        unread.clear();
    }

    /** What {@link PassProfile} has measured of a layer in one place: inside the same calls of other layers. */
    private static final class ProfilePlace {
        private static final double NANOS_PER_MILLI = 1e6;

        /** The sums of one direction. */
        private static final class Sums {
            private long calls;
            private double deviceMillis;
            private double hostNanos;

            private void clear() {
                calls = 0;
                deviceMillis = 0;
                hostNanos = 0;
            }

            private double deviceMean() {
                return calls == 0 ? 0 : deviceMillis / calls;
            }

            private double hostMean() {
                return calls == 0 ? 0 : hostNanos / calls / NANOS_PER_MILLI;
            }
        }

        final @Nullable Layer layer;
        private final int depth;
        private final List<ProfilePlace> inside = new ArrayList<>();
        private final Sums forward = new Sums();
        private final Sums backward = new Sums();
        private long keptBytes;

        ProfilePlace(@Nullable Layer layer, int depth) {
            this.layer = layer;
            this.depth = depth;
        }

        ProfilePlace inside(Layer wanted) {
            for (int i = 0; i < inside.size(); i++) {
                if (inside.get(i).layer == wanted) {
                    return inside.get(i);
                }
            }
            ProfilePlace made = new ProfilePlace(wanted, depth + 1);
            inside.add(made);
            return made;
        }

        void add(Direction direction, double deviceMillis, long hostNanos) {
            Sums sums = sums(direction);
            sums.calls++;
            sums.deviceMillis += deviceMillis;
            sums.hostNanos += hostNanos;
        }

        void kept(long bytes) {
            keptBytes = Math.max(keptBytes, bytes);
        }

        private Sums sums(Direction direction) {
            return switch (direction) {
                case FORWARD -> forward;
                case BACKWARD -> backward;
            };
        }

        void addRows(List<PassProfile.Row> rows) {
            if (layer != null && forward.calls + backward.calls > 0) {
                rows.add(new PassProfile.Row(
                        layer.name(),
                        depth,
                        forward.calls,
                        backward.calls,
                        forward.deviceMean(),
                        backward.deviceMean(),
                        forward.hostMean(),
                        backward.hostMean(),
                        keptBytes));
            }
            inside.forEach(place -> place.addRows(rows));
        }

        void clear() {
            forward.clear();
            backward.clear();
            keptBytes = 0;
            inside.forEach(ProfilePlace::clear);
        }
    }
}
