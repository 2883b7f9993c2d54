package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameters;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * An exponential moving average of the weights, FLOAT32, in the order of the gradients: {@code a = a + (1 - decay) (w - a)} after each step. It
 * begins with the weights, also where these were written from outside.
 *
 * <p>It is a step of SGD at the rate {@code 1 - decay} whose weights are a and whose gradients are {@code a - w}: -1 times w, with a
 * weight decay of 1.
 *
 * <p>Threading: the device's thread.
 */
final class WeightAverage extends MasterCopies {
    static final String ENDING = ".ema";

    /** Elements that are updated in a call: as many have room for FLOAT32 weights and for what SGD writes beside. */
    private static final long MOST = 16L << 20;

    private static final OptimizerStep LERP = OptimizerStep.of(Method.SGD, 0, 0);

    private final Parameters parameters;
    private final OptimizerState state;
    private final Tensor minusOne;
    private final List<Part> parts = new ArrayList<>();
    /** Room for the weights of training while those of an evaluation are in their place. */
    private @Nullable Scope room;
    /** These weights, of each part. */
    private final List<Tensor> kept = new ArrayList<>();

    /**
     * Some elements.
     *
     * @param weights of their type
     * @param copy room for FLOAT32 weights; null where they are such
     * @param average of them
     * @param table of the kernel
     */
    private record Part(Tensor weights, @Nullable Tensor copy, Tensor average, StepRanges table) {}

    /** Allocates averages in the scope of {@code state}. */
    WeightAverage(Parameters parameters, OptimizerState state, float decay) {
        Scope scope = state.scope();
        Tensor averages = OptimizerState.zeros(parameters.gradients().count(), scope);
        super(parameters, new StateVector(ENDING, averages, 1), scope);
        this.parameters = parameters;
        this.state = state;
        minusOne = scope.tensor(DType.FLOAT32, 1);
        minusOne.set(scope.stream(), -1f);
        Tensor rate = scope.tensor(DType.FLOAT32, 1);
        rate.set(scope.stream(), 1 - decay);
        List<UpdateRange> ranges = UpdateRange.of(parameters, 0, List.of());
        long room = Math.min(
                MOST, ranges.stream().mapToLong(UpdateRange::count).max().orElse(0));
        Tensor written = scope.tensor(DType.FLOAT32, room);
        Tensor copies = ranges.stream().allMatch(UpdateRange::isFloat32) ? null : scope.tensor(DType.FLOAT32, room);
        for (UpdateRange range : ranges) {
            for (long done = 0; done < range.count(); done += room) {
                add(range, done, Math.min(room, range.count() - done), written, copies, rate);
            }
        }
        take();
    }

    private void add(UpdateRange range, long done, long count, Tensor written, @Nullable Tensor copies, Tensor rate) {
        Tensor weights = scope.view(range.weights(), range.weightOffset() + done, count);
        Tensor average = scope.view(vector().elements(), range.gradientOffset() + done, count);
        Tensor copy = range.isFloat32() || copies == null ? null : scope.view(copies, 0, count);
        StepState first = StepState.of(scope.view(written, 0, count));
        StepRange one = new StepRange(copy == null ? weights : copy, average, null, first, null, rate, null, 1);
        parts.add(new Part(weights, copy, average, StepRanges.of(List.of(one), scope)));
    }

    /** Enqueues what follows a step, unless {@code skip} is not 0. */
    void update(Tensor skip) {
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            if (part.copy != null) {
                Elementwise.cast(part.weights, part.copy, scope.stream());
            }
            LERP.step(part.table, state.numbers().step(), minusOne, skip, scope.stream());
        }
    }

    @Override
    void take() {
        for (Part part : parts) {
            Elementwise.cast(part.weights, part.average, scope.stream());
        }
    }

    /** Makes the weights the averages. A second call does nothing. */
    void beginEvaluation() {
        state.ensureSwitches("average of weights", "beginEvaluation");
        if (room != null) {
            return;
        }
        state.masters()
                .write(); // Weights that were written from outside are the masters from now on, and the averages.
        write();
        Scope made = scope.device().openScope(scope.stream());
        room = made;
        for (Part part : parts) {
            Tensor copy = made.tensor(part.weights.dtype(), part.weights.count());
            copy.copyFrom(scope.stream(), part.weights);
            kept.add(copy);
            Elementwise.cast(part.average, part.weights, scope.stream());
        }
        rewritten(true);
    }

    /** Makes the weights again those of training. A second call does nothing. */
    void endEvaluation() {
        state.ensureSwitches("average of weights", "endEvaluation");
        Scope made = room;
        if (made == null) {
            return;
        }
        for (int i = 0; i < kept.size(); i++) {
            parts.get(i).weights.copyFrom(scope.stream(), kept.get(i));
        }
        close();
        rewritten(false);
    }

    /** Frees the room for weights; the averages are freed with the state. */
    void close() {
        kept.clear();
        Scope made = room;
        room = null;
        if (made != null) {
            made.close();
        }
    }

    private void rewritten(boolean evaluating) {
        parameters.access().rewritten();
        state.masters().keepLoaded();
        keepLoaded();
        state.numbers().evaluate(evaluating);
    }
}
