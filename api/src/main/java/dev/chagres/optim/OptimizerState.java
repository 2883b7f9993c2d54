package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.PinnedMemory;
import dev.chagres.ops.StepState;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * The state of an optimizer, and its form in files: vectors in the order of the gradients, such as moments, masters of weights of 16 bits,
 * rates and number of the step.
 *
 * <p>Threading: the device's thread.
 */
final class OptimizerState implements AutoCloseable {
    private final String name;
    private final Parameters parameters;
    /** All elements, by weight type, decay and group. */
    final List<UpdateRange> ranges;
    /** The scope that owns the memory; its stream runs the steps. */
    final Scope scope;
    /** Where vectors and masters lie: {@link #scope}, or memory of the host. */
    private final Scope kept;
    /** What masters are kept, and where. */
    @FunctionalInterface
    interface Masters {
        /** Makes the masters of ranges in a scope, with memory that is not written yet; {@code vectors} are those of the state. */
        MasterCopies in(List<UpdateRange> ranges, Scope scope, List<StateVector> vectors);
    }

    private final List<StateVector> vectors = new ArrayList<>();
    final MasterCopies masters;
    final StepScalars numbers;
    /** Null without one. */
    private @Nullable WeightAverage average;

    /** Adds what is saved once, not for each element of the gradients. */
    private Consumer<State.Builder> beside = _ -> {};

    /** What {@link #whole()} returns; null before. */
    private @Nullable State whole;

    /**
     * Allocates vectors of 0, and masters from the present weights, in a separate scope.
     *
     * @param name of the optimizer's class
     * @param dtype of the vectors; BYTE for codes of eight bits, each vector of which has one of scales behind it
     * @param endings of the names of the vectors
     * @param hostBytes of vectors and masters in page-locked memory of the host; 0 for the device's memory
     */
    OptimizerState(
            String name,
            Parameters parameters,
            DType dtype,
            List<String> endings,
            Masters kind,
            List<UpdateRange> ranges,
            List<ParameterGroup> groups,
            long hostBytes) {
        this.name = name;
        this.parameters = parameters;
        this.ranges = ranges;
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream).countedAs(MemoryUse.Holder.OPTIMIZER);
        Scope host = null;
        try {
            host = hostBytes == 0 ? scope : onHost(stream, hostBytes);
            kept = host;
            long count = parameters.gradientCount();
            for (String ending : endings) {
                vectors.add(new StateVector(ending, kept.tensor(dtype, count), 1));
                if (dtype == DType.BYTE) {
                    long scales = Math.ceilDiv(count, (long) StepState.BLOCK);
                    String ofScales = ending + StateVector.SCALES;
                    vectors.add(new StateVector(ofScales, kept.tensor(DType.FLOAT32, scales), 1, StepState.BLOCK));
                }
            }
            vectors.forEach(vector -> vector.elements().zero(stream));
            masters = kind.in(ranges, kept, List.copyOf(vectors));
            masters.take();
            numbers =
                    new StepScalars(name, scope, groups); // Last, since the scope does not close it if something fails.
        } catch (RuntimeException | Error failure) {
            if (host != null) {
                host.close();
            }
            scope.close();
            throw failure;
        }
    }

    private static Scope onHost(Stream stream, long bytes) {
        return Inside.openScope(stream, PinnedMemory.allocate(Inside.state(stream), stream.handle(), bytes));
    }

    /** Returns the bytes of the host's memory. */
    long hostBytes() {
        return kept == scope ? 0 : kept.reservedBytes();
    }

    /** Adds an average of the weights, which is saved as the other vectors are. */
    WeightAverage keepAverage(float decay) {
        WeightAverage made = new WeightAverage(parameters, this, decay);
        average = made;
        vectors.add(made.vector);
        return made;
    }

    /** Records that the weights were made others here, for an evaluation or for training: masters and averages stay. */
    void rewritten(boolean evaluating) {
        parameters.access().rewritten();
        keepLoaded();
        numbers.evaluate(evaluating);
    }

    /** Also saves what {@code adds} adds, which every rank has whole. */
    void keepBeside(Consumer<State.Builder> adds) {
        beside = adds;
    }

    /** Returns the average of the weights; null without one. */
    @Nullable
    WeightAverage average() {
        return average;
    }

    /** Allocates so many zeros, FLOAT32. */
    static Tensor zeros(long count, Scope scope) {
        Tensor tensor = scope.tensor(DType.FLOAT32, count);
        tensor.zero(scope.stream());
        return tensor;
    }

    /** Returns this rank's gradients of a range. */
    Tensor gradients(UpdateRange range) {
        return range.gradients(scope);
    }

    /** Returns a vector, by its place in {@link #vectors} after the masters. */
    Tensor vector(int index) {
        return vectors.get(index).elements();
    }

    /** Returns a state of a range, by its place among the endings. */
    StepState of(int index, UpdateRange range) {
        long first = range.gradientOffset();
        if (vectors.getFirst().elements().dtype() != DType.BYTE) {
            return StepState.of(scope.view(vector(index), first, range.count()));
        }
        StateVector scales = vectors.get(2 * index + 1);
        return new StepState(
                scope.view(vector(2 * index), first, range.count()),
                scope.view(scales.elements(), scales.countOf(first), scales.countOf(range.count())));
    }

    void ensureOpen() {
        if (numbers.isClosed()) {
            throw new IllegalStateException("the " + name + " of " + scope.device()
                    + " is closed; make another with new " + name + "(parameters, config)");
        }
    }

    /** Checks that the weights are those that gradients are taken at. */
    void ensureTraining() {
        ensureOpen();
        numbers.ensureTraining();
    }

    /** Checks that the weights can be made others by {@code call}, which errors say {@code what} does. */
    void ensureSwitches(String what, String call) {
        ensureOpen();
        Stream stream = scope.stream();
        Inside.state(stream).ensureCurrent();
        Inside.state(stream).ensureNotGrouping(call);
        Inside.state(stream).awaitReads();
        if (Inside.capture(stream) != null) {
            throw new CaptureException(what + ": " + call + " cannot be captured; enqueue it");
        }
    }

    /** Lists everything that is saved, by parameter. Made once: its views last as long as the optimizer. */
    State whole() {
        ensureTraining();
        State present = whole;
        if (present == null) {
            present = list();
            whole = present;
        }
        return present;
    }

    private State list() {
        if (parameters.access().shard() != null) {
            throw new IllegalStateException("state: expected that of whole weights, got that of a rank's part; save"
                    + " and load it with RunState.of(strategy).optimizer(optimizer)");
        }
        State.Builder state = new State.Builder();
        for (Parameter parameter : parameters.all()) {
            if (parameter.isTrained()) {
                masters.addTo(state, parameter);
                for (StateVector vector : vectors) {
                    state.tensor(parameter.name() + vector.ending(), part(vector, parameter), vector.values());
                    if (vector.block() > 1) {
                        state.coded(vector.codedAlone(parameter));
                    }
                }
            }
        }
        return withStep(state);
    }

    private Tensor part(StateVector vector, Parameter parameter) {
        return scope.view(vector.elements(), vector.countOf(masters.offset(parameter)), vector.shapeOf(parameter));
    }

    /** Lists what is saved beside {@link #vectors}. */
    State step() {
        ensureTraining();
        return withStep(new State.Builder());
    }

    private State withStep(State.Builder state) {
        beside.accept(state);
        numbers.addTo(state);
        return state.number("optimizer.step", numbers::taken, numbers::restore, Integer.MAX_VALUE)
                .lastAfterLoading(this::keepLoaded)
                .build();
    }

    private void keepLoaded() {
        masters.keepLoaded();
        if (average != null) {
            average.keepLoaded();
        }
    }

    /** Returns the vectors with state for each element of the gradients, in the order of {@link #whole}. */
    List<StateVector> vectors() {
        ensureOpen();
        List<StateVector> all = new ArrayList<>(List.of(masters.vector));
        all.addAll(vectors);
        return all;
    }

    /**
     * Returns {@code text} and the groups, which ranks must have in common: those that update the same weights also which parameters each
     * group has.
     */
    String settings(String text, boolean withMembers) {
        StringBuilder settings = new StringBuilder(text);
        List<ParameterGroup> groups = numbers.groups;
        for (int i = 0; i < groups.size(); i++) {
            settings.append(" with ").append(groups.get(i));
            if (withMembers) {
                int number = i + 1;
                List<Parameter> members = parameters.all().stream()
                        .filter(parameter -> !parameter.isFrozen() && UpdateRange.groupOf(parameter, groups) == number)
                        .toList();
                CRC32C names = new CRC32C();
                members.forEach(member -> names.update((member.name() + "\n").getBytes(StandardCharsets.UTF_8)));
                settings.append(" of ")
                        .append(members.size())
                        .append(members.size() == 1 ? " parameter" : " parameters")
                        .append(" (checksum of their names ")
                        .append(Long.toHexString(names.getValue()))
                        .append(')');
            }
        }
        return settings.toString();
    }

    @Override
    public void close() {
        Inside.state(scope.stream()).ensureCloses();
        numbers.close();
        if (average != null) {
            average.close();
        }
        kept.close();
        scope.close();
    }
}
