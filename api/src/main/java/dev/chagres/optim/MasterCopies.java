package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Masters of 16-bit weights, so that small updates are not lost.
 *
 * <p>Threading: the device's thread.
 */
abstract class MasterCopies implements StepWork {
    private final Parameters parameters;
    /** All masters, in the order of the gradients. */
    final StateVector vector;

    final Scope scope;
    private int version;

    /** {@code vector}: all masters, in the order of the gradients, in {@code scope}. */
    MasterCopies(Parameters parameters, StateVector vector, Scope scope) {
        this.parameters = parameters;
        this.vector = vector;
        this.scope = scope;
        version = parameters.version();
    }

    /** Enqueues new masters from the present weights. */
    abstract void take();

    /** Returns the masters of a range; null for FLOAT32 weights. */
    final @Nullable Tensor of(UpdateRange range) {
        return vector.isFor(range.weights().dtype())
                ? scope.view(vector.elements(), vector.countOf(range.gradientOffset()), vector.countOf(range.count()))
                : null;
    }

    /** Returns how masters of 16-bit weights are made. */
    static OptimizerState.Masters of(Parameters parameters, AdamW.Masters kind) {
        return (ranges, scope, _) -> kind == AdamW.Masters.REMAINDER
                ? new Remainders(parameters, ranges, scope)
                : new MasterWeights(parameters, ranges, scope);
    }

    /** Adds the masters of a parameter, if it has any. */
    final void addTo(State.Builder state, Parameter parameter) {
        if (vector.isFor(parameter.weight().dtype())) {
            long first = vector.countOf(offset(parameter));
            state.tensor(
                    parameter.name() + vector.ending(),
                    scope.view(vector.elements(), first, vector.shapeOf(parameter)));
        }
    }

    /** Prepares the next step: enqueues new masters if weights were written from outside since. */
    final void prepare() {
        Capture capture = Inside.capture(scope.stream());
        if (capture != null && parameters.isChangedInCapture()) {
            take(); // After the graph's own writes, and so in the graph.
            // Writes of the graph after its step are counted later, at each launch.
            capture.eachLaunch(this, MasterCopies::keepLoaded);
        } else {
            Inside.eachStep(scope.stream(), this);
        }
    }

    /** Enqueues new masters if weights were written from outside since. */
    @Override
    public final void write() {
        if (version != parameters.version()) {
            take();
            keepLoaded();
        }
    }

    /** Records that masters were loaded with the weights, and are kept. */
    final void keepLoaded() {
        version = parameters.version();
    }

    /** Returns the first element of a parameter in the order of the gradients. */
    final long offset(Parameter parameter) {
        return parameters.access().gradientOffset(parameter);
    }

    /**
     * FLOAT32 copies of trained weights that have 16 bits, in the order of the gradients. FLOAT32 weights are their own masters.
     */
    private static final class MasterWeights extends MasterCopies {
        /** Ranges that are contiguous both in weights and in masters: one kernel copies each. */
        private record Copy(Tensor weights, Tensor masters) {}

        private final List<Copy> copies = new ArrayList<>();

        MasterWeights(Parameters parameters, List<UpdateRange> ranges, Scope scope) {
            // As long as the gradients; elements whose weights are FLOAT32 are not used. Without 16-bit weights one
            // element.
            boolean needed = ranges.stream().anyMatch(range -> !range.isFloat32());
            Tensor masters = OptimizerState.zeros(needed ? parameters.gradientCount() : 1, scope);
            super(parameters, new StateVector(StateVector.MASTER, masters, 1), scope);
            List<UpdateRange> run = new ArrayList<>();
            for (UpdateRange range : ranges) {
                if (!run.isEmpty() && !run.getLast().endsAt(range)) {
                    addCopy(run);
                    run.clear();
                }
                run.add(range);
            }
            addCopy(run);
        }

        private void addCopy(List<UpdateRange> run) {
            if (run.isEmpty() || run.getFirst().isFloat32()) {
                return;
            }
            UpdateRange first = run.getFirst();
            long count = run.stream().mapToLong(UpdateRange::count).sum();
            copies.add(new Copy(
                    scope.view(first.weights(), first.weightOffset(), count),
                    scope.view(vector.elements(), first.gradientOffset(), count)));
        }

        @Override
        void take() {
            for (int i = 0; i < copies.size(); i++) {
                Elementwise.cast(copies.get(i).weights, copies.get(i).masters, scope.stream());
            }
        }
    }

    /**
     * The low 16 bits of FP32 masters whose upper halves, rounded, are the BFLOAT16 weights: two bytes per weight instead of four, with the
     * same precision.
     *
     * <p>Source: {@code store_param_remainders} of TE's {@code FusedAdam}.
     */
    private static final class Remainders extends MasterCopies {
        private static final int BYTES = 2;

        /** Throws an {@link IllegalArgumentException} when trained weights are FLOAT16. */
        Remainders(Parameters parameters, List<UpdateRange> ranges, Scope scope) {
            for (UpdateRange range : ranges) {
                if (range.weights().dtype() == DType.FLOAT16) {
                    throw new IllegalArgumentException(
                            "masters: expected FLOAT32 for weights of FLOAT16, got REMAINDER,"
                                    + " which BFLOAT16 weights can have");
                }
            }
            // Two bytes an element, in the order of the gradients. Without 16-bit weights one element.
            boolean needed = ranges.stream().anyMatch(range -> !range.isFloat32());
            Tensor bytes = scope.tensor(DType.BYTE, BYTES * (needed ? parameters.gradientCount() : 1));
            super(parameters, new StateVector(StateVector.REMAINDER, bytes, BYTES), scope);
        }

        /** The remainder of a BFLOAT16 number as FP32 master is 0. */
        @Override
        void take() {
            vector.elements().zero(scope.stream());
        }
    }
}
