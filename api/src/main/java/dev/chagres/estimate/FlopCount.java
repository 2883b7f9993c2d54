package dev.chagres.estimate;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.WorkListener;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import dev.chagres.pass.PassProfile;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Counts the floating-point operations of matrix products and attention that a program enqueues, by layer:
 *
 * <ul>
 *   <li>a product [m, k] by [k, n]: {@code 2 m n k};
 *   <li>attention, forward: {@code 2 h p (d + d')} for h heads of d columns, with values of d', and p pairs of a query and a key that it
 *       sees; backward: {@code 4 h p (d + d')}, and {@code 2 h p d} for the scores, which are computed once more.
 * </ul>
 *
 * <p>Element-wise kernels and norms do not count, nor does padding in attention. What backward computes once more, of scores or of whole layers,
 * counts as recomputation, which is no work of the model: {@link Flops#model} leaves it out, {@link Flops#all} has it. A product in a layer's
 * backward is taken for recomputation if its second factor is transposed, as only forward products of {@code x W^T} have it; outside of layers, where losses
 * are computed, a product of another form is taken for a gradient.
 *
 * {@snippet file="dev/chagres/estimate/DryRunTest.java" region="count"}
 *
 * <p>On several ranks these are the operations of this rank; where ranks split tokens, those of attention are not counted. Attention that cuDNN
 * computes as a graph, with changed scores, is not counted either.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: the convention of model and hardware FLOPs is that of Chowdhery et al., "PaLM" (2022), appendix B.
 */
public final class FlopCount implements PassObserver, AutoCloseable {
    /**
     * Operations of one place.
     *
     * @param forward of the forward calls
     * @param backward of the gradients
     * @param recomputation of what backward computes once more
     */
    public record Flops(double forward, double backward, double recomputation) {
        static final Flops NONE = new Flops(0, 0, 0);

        /** Returns forward and backward without recomputation: what the model needs. */
        public double model() {
            return forward + backward;
        }

        /** Returns all that is computed. */
        public double all() {
            return forward + backward + recomputation;
        }

        Flops plus(Flops other) {
            return new Flops(forward + other.forward, backward + other.backward, recomputation + other.recomputation);
        }
    }

    /**
     * The operations of a layer in one place, those of the layers inside included.
     *
     * @param layer its name
     * @param depth number of layers that this one is called inside
     * @param flops since counting began
     */
    public record Row(String layer, int depth, Flops flops) {}

    private static final class Place {
        private final @Nullable Layer layer;
        private final int depth;
        private final List<Place> inside = new ArrayList<>();
        private double forward;
        private double backward;
        private double recomputation;

        private Place(@Nullable Layer layer, int depth) {
            this.layer = layer;
            this.depth = depth;
        }

        private Place inside(Layer wanted) {
            for (int i = 0; i < inside.size(); i++) {
                if (inside.get(i).layer == wanted) {
                    return inside.get(i);
                }
            }
            Place made = new Place(wanted, depth + 1);
            inside.add(made);
            return made;
        }

        private Flops flops() {
            Flops sum = new Flops(forward, backward, recomputation);
            for (Place one : inside) {
                sum = sum.plus(one.flops());
            }
            return sum;
        }

        private void addRows(List<Row> rows) {
            if (layer != null) {
                rows.add(new Row(layer.name(), depth, flops()));
            }
            inside.forEach(one -> one.addRows(rows));
        }

        private void clear() {
            forward = 0;
            backward = 0;
            recomputation = 0;
            inside.forEach(Place::clear);
        }
    }

    private final List<Pass> passes;
    private final DeviceState device;
    private final Lengths lengths;
    private final Place top = new Place(null, -1);
    private final List<Place> open = new ArrayList<>();
    private final List<Direction> directions = new ArrayList<>();
    private final double[] byBits = new double[Long.SIZE + 1];
    private double attention;
    private final WorkListener work = new WorkListener() {
        @Override
        public void product(Form form, long m, long n, long k, int bits) {
            double flops = 2.0 * m * n * k;
            byBits[bits] += flops;
            boolean backward = isBackward();
            add(flops, form == Form.GRADIENT && (backward || open.isEmpty()), form == Form.FORWARD && backward);
        }

        @Override
        public void attention(Part part, long heads, long dim, long valueDim, long left, long right, int bits) {
            double pairs = lengths.pairs(left, right);
            double forward = 2 * heads * pairs * (dim + valueDim);
            if (part == Part.FORWARD) {
                attention += forward;
                add(forward, false, isBackward());
                return;
            }
            double scores = 2 * heads * pairs * dim;
            attention += 2 * forward + scores;
            add(2 * forward, true, false);
            add(scores, false, true);
        }
    };

    private FlopCount(Lengths lengths, List<Pass> passes, DeviceState device) {
        this.lengths = lengths;
        this.passes = List.copyOf(passes);
        this.device = device;
    }

    /**
     * Counts what is enqueued on {@code device} from now on, whatever passes it is of, without layers: {@link Flops#all} is right, and what
     * of it is recomputation is not known. Steps that are captured are counted then, and not when they are replayed.
     *
     * @param lengths of the sequences of each micro-batch, for the pairs of attention
     * @throws IllegalStateException when another one counts on the device
     */
    public static FlopCount of(Lengths lengths, Device device) {
        return begun(new FlopCount(
                Checks.given("lengths", lengths), List.of(), Inside.state(Checks.given("device", device))));
    }

    /**
     * Counts what is enqueued on the device of {@code pass} from now on, and observes the pass until this is closed.
     *
     * @param lengths of the sequences of each micro-batch, for the pairs of attention
     * @throws IllegalStateException when another one counts on the device
     */
    public static FlopCount of(Lengths lengths, Pass pass) {
        return of(lengths, List.of(Checks.given("pass", pass)));
    }

    /**
     * The same of several passes on one device.
     *
     * @throws IllegalArgumentException when there is none
     * @throws IllegalStateException when another one counts on the device
     */
    public static FlopCount of(Lengths lengths, List<Pass> passes) {
        if (Checks.given("passes", passes).isEmpty()) {
            throw new IllegalArgumentException("passes: expected at least one, got none");
        }
        return begun(new FlopCount(Checks.given("lengths", lengths), passes, Inside.state(passes.getFirst().stream())));
    }

    private static FlopCount begun(FlopCount count) {
        if (count.device.workListener() != null) {
            throw new IllegalStateException(
                    "device: expected one on which nothing counts operations yet; close the other FlopCount first");
        }
        count.device.workListener(count.work);
        count.passes.forEach(pass -> pass.observe(count));
        return count;
    }

    private boolean isBackward() {
        for (int i = 0; i < directions.size(); i++) {
            if (directions.get(i) == Direction.BACKWARD) {
                return true;
            }
        }
        return false;
    }

    private void add(double flops, boolean backward, boolean recomputed) {
        Place place = open.isEmpty() ? top : open.getLast();
        if (recomputed) {
            place.recomputation += flops;
        } else if (backward) {
            place.backward += flops;
        } else {
            place.forward += flops;
        }
    }

    @Override
    public void entering(Layer layer, Direction direction, Pass pass) {
        open.add((open.isEmpty() ? top : open.getLast()).inside(layer));
        directions.add(direction);
    }

    @Override
    public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
        if (!open.isEmpty()) {
            open.removeLast();
            directions.removeLast();
        }
    }

    @Override
    public void failed(Layer layer, Direction direction, Pass pass) {
        left(layer, direction, pass, 0);
    }

    /** Returns all operations since counting began, those outside of layers included. */
    public Flops flops() {
        return top.flops();
    }

    /** Returns the operations of products whose factors have {@code bits} bits: 32, 16 or 8. */
    public double ofProducts(int bits) {
        return byBits[bits];
    }

    /** Returns the operations of attention, the scores included that are computed once more. */
    public double ofAttention() {
        return attention;
    }

    /** Returns a row for each layer in each place where it is called, before those inside it. */
    public List<Row> rows() {
        List<Row> rows = new ArrayList<>();
        top.addRows(rows);
        return rows;
    }

    /** Returns the rows as a table, layers inside others indented, in units of 10^9 operations. */
    public String table() {
        List<Row> rows = rows();
        int width = rows.stream()
                .mapToInt(row -> 2 * row.depth + row.layer.length())
                .reduce("all, losses included".length(), Math::max);
        String format = "%-" + width + "s %14s %14s %14s";
        StringBuilder text = new StringBuilder(
                String.format(Locale.ROOT, format, "layer", "forward G", "backward G", "recomputed G"));
        for (Row row : rows) {
            line(text, width, "  ".repeat(row.depth) + row.layer, row.flops);
        }
        line(text, width, "all, losses included", flops());
        return text.toString();
    }

    /**
     * Returns the rates of layers as a table: the operations that were counted of {@code steps} steps by the times that {@code profile} has measured,
     * which are means of calls, too. Layers are found by name and depth.
     *
     * @param steps how many were counted
     * @throws IllegalArgumentException when there is none
     */
    public String rates(PassProfile profile, int steps) {
        Checks.atLeastOne("steps", steps);
        StringBuilder text = new StringBuilder(String.format(
                Locale.ROOT, "%-40s %12s %10s %12s %10s", "layer", "forward ms", "TFLOP/s", "backward ms", "TFLOP/s"));
        Map<String, Flops> counted = new HashMap<>();
        rows().forEach(row -> counted.merge(row.depth + row.layer, row.flops, Flops::plus));
        for (PassProfile.Row row : Checks.given("profile", profile).rows()) {
            Flops flops = counted.getOrDefault(row.depth() + row.layer(), Flops.NONE);
            text.append(String.format(
                    Locale.ROOT,
                    "%n%-40s %12.3f %10.2f %12.3f %10.2f",
                    "  ".repeat(row.depth()) + row.layer(),
                    row.forwardMillis(),
                    flops.forward / steps / row.forwardMillis() / 1e9,
                    row.backwardMillis(),
                    (flops.backward + flops.recomputation) / steps / row.backwardMillis() / 1e9));
        }
        return text.toString();
    }

    private static void line(StringBuilder text, int width, String name, Flops flops) {
        text.append(String.format(
                Locale.ROOT,
                "%n%-" + width + "s %,14.3f %,14.3f %,14.3f",
                name,
                flops.forward / 1e9,
                flops.backward / 1e9,
                flops.recomputation / 1e9));
    }

    /** Forgets what was counted so far. */
    public void clear() {
        top.clear();
        Arrays.fill(byBits, 0);
        attention = 0;
    }

    /** Stops counting; what was counted stays. A second call does nothing. */
    @Override
    public void close() {
        if (device.workListener() == work) {
            device.workListener(null);
            passes.forEach(pass -> pass.forget(this));
        }
    }

    /** Returns the operations of the model and of recomputation. */
    @Override
    public String toString() {
        Flops all = flops();
        return String.format(
                Locale.ROOT, "FlopCount(model=%.4g, recomputation=%.4g)", all.model(), all.recomputation());
    }
}
