package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.parallel.NormOverRanks;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ParameterAllocation.Beginning;
import dev.chagres.parameter.ShardRanges.FirstWeights;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongFunction;
import org.jspecify.annotations.Nullable;

// Over 400 lines: most of them are Javadoc of a wide public API. ParameterAllocation and the classes of the fields do
// the work.

/**
 * The memory of a model's parameters: a vector of weights for each type, and one vector of FLOAT32 gradients of the trained parameters;
 * those that products write may lie in a vector of another type ({@link ModelPlan#productGradients}). Each parameter is a view of both. Groups of the plan lie side by side; inside a group, parameters with weight decay come first.
 *
 * <p>This object counts steps. A gradient belongs to the step in which a backward pass wrote it: {@link #nextStep}, which
 * optimizers call, makes the next backward pass overwrite it.
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="parameters"}
 *
 * <p>Threading: the device's thread.
 */
public final class Parameters implements AutoCloseable {
    final ParameterVectors vectors;
    private final List<Parameter> all;
    private final DType dtype;
    private final long seed;
    private final List<ParameterRange> ranges;
    private final ParameterAccess sharing;
    private final TensorParallel tensorParallel;
    private final List<QuantizerSite> quantizers;
    private final StepCount steps;
    final PartialGradients partials;
    final ParameterStates states;
    /** Objects that are closed before the memory is freed. */
    private final List<AutoCloseable> adopted = new ArrayList<>();

    /** What the capture under way records of the gradients. */
    @Nullable
    CapturedGradients captured;

    private boolean closed;
    private final Leaks.@Nullable Trace trace;

    /** For {@link ParameterAllocation}, which then sets the place of each parameter. */
    Parameters(ModelPlan plan, DType dtype, ParameterLayout layout, ParameterVectors vectors, long seed) {
        this.vectors = vectors;
        this.dtype = dtype;
        this.seed = seed;
        Scope scope = vectors.scope;
        if (vectors.weightScope != scope) {
            adopted.add(vectors.weightScope);
        }
        all = List.copyOf(plan.groups().values().stream().flatMap(List::stream).toList());
        tensorParallel = plan.tensorParallel();
        quantizers = List.copyOf(plan.quantizers());
        steps = new StepCount(this, scope.stream());
        states = new ParameterStates(this, all, quantizers, vectors, steps);
        sharing = new ParameterAccess(this, layout.groups, vectors.shard, plan);
        partials = new PartialGradients(all, tensorParallel, scope, sharing::gradient);
        ranges = vectors.ranges(layout);
        if (tensorParallel.isSplit()) {
            NormOverRanks norm = new NormOverRanks(scope, tensorParallel.group());
            adopted.add(norm);
            sharing.step(norm);
        }
        trace = Leaks.opened(
                "parameters of " + scope.stream().device() + " with " + count() + " elements", this::holds);
    }

    /**
     * Allocates memory for all parameters of {@code plan} and writes their initial values. Gradients are 0.
     *
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed equal seeds give equal weights, on every machine
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed) {
        return allocate(device, plan, dtype, seed, WeightStorage.MODEL_TYPE);
    }

    /**
     * Allocates memory as {@link #allocate(Device, ModelPlan, DType, long)} does, with weights of products stored as {@code storage} says.
     *
     * {@snippet file="dev/chagres/ExamplesTest.java" region="quantizedWeights"}
     *
     * @param dtype type of the weights that were declared without one; of 16 bits unless {@code storage} is {@link
     *     WeightStorage#MODEL_TYPE}
     * @throws IllegalArgumentException when the type is no float, or not of 16 bits where it must be, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed, WeightStorage storage) {
        return ParameterAllocation.allocate(device, plan, dtype, seed, storage, null, null, Beginning.DRAWN);
    }

    /**
     * Allocates memory for all parameters of {@code plan}, all 0, without the time that drawing their initial values takes: for a model whose
     * weights are loaded before it computes.
     *
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own
     */
    public static Parameters allocateZeros(Device device, ModelPlan plan, DType dtype) {
        return ParameterAllocation.allocate(
                device, plan, dtype, 0, WeightStorage.MODEL_TYPE, null, null, Beginning.ZEROS);
    }

    /**
     * For sharding: allocates memory for the part of a model that one rank keeps, of a plan that {@link ModelPlan#padGroups} has padded for
     * the number of ranks. Whole gradients and sharded weights have memory only while it is lent ({@link ParameterAccess#lendWeight});
     * {@link #ranges} and {@link #gradients} are those of the part.
     *
     * @throws IllegalArgumentException when the type is no float, the plan is empty, or it is not padded for so many ranks
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed, ParameterShard shard) {
        return ParameterAllocation.allocate(device, plan, dtype, seed, shard, null);
    }

    /**
     * For sharding: allocates memory as {@link #allocate(Device, ModelPlan, DType, long, ParameterShard)} does, but the weights from {@code
     * weightMemory}.
     *
     * @param weightMemory called once with a number of bytes; opens a scope, which these parameters close
     * @throws IllegalArgumentException as without it
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own
     */
    public static Parameters allocate(
            Device device,
            ModelPlan plan,
            DType dtype,
            long seed,
            ParameterShard shard,
            LongFunction<Scope> weightMemory) {
        return ParameterAllocation.allocate(
                device, plan, dtype, seed, shard, Checks.given("weightMemory", weightMemory));
    }

    /**
     * For recipes: writes the initial values of a parameter, and waits until they are written.
     *
     * @param target as many elements as the parameter has, FLOAT32, BFLOAT16 or FLOAT16
     * @throws IllegalArgumentException when {@code target} has another type or number of elements, or is on another device
     */
    public void drawFirst(Parameter parameter, Tensor target) {
        Checks.given("parameter", parameter);
        Checks.floats(scope().stream(), "target", target);
        if (target.count() != parameter.shape().count()) {
            throw new IllegalArgumentException("target: expected the "
                    + parameter.shape().count() + " elements of " + parameter + ", got " + Checks.describe(target));
        }
        target.zero(scope().stream());
        try (FirstWeights first = new FirstWeights(scope())) {
            first.write(parameter, seed, target);
        }
    }

    /** Returns the parameters, group by group in the order of their declaration. */
    public List<Parameter> all() {
        return all;
    }

    /**
     * Returns the parameter of this name.
     *
     * @throws IllegalArgumentException when there is none
     */
    public Parameter get(String name) {
        return all.stream()
                .filter(parameter -> parameter.name().equals(name))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        "name: expected that of a parameter, got " + name + "; all() lists them"));
    }

    /** Returns the type of the weights that were declared without one. */
    public DType dtype() {
        return dtype;
    }

    /**
     * Returns all weights of the model's type as one vector; elements between parameters are always 0. Call {@link #changed} after a kernel
     * has written to it.
     *
     * @throws IllegalStateException when every parameter has a type of its own, or the parameters are closed
     */
    public Tensor weights() {
        ensureOpen();
        Tensor vector = vectors.weightsOrNull(dtype);
        if (vector == null && vectors.isBorrowed()) {
            throw new IllegalStateException("weights: expected parameters with memory of their own, got those that"
                    + " SharedWeights have lent; use Parameter.weight()");
        }
        if (vector == null) {
            throw new IllegalStateException("weights: every parameter was declared with a type of its own"
                    + (all.stream().anyMatch(Parameter::isQuantizedOnly) ? " or is kept in eight bits" : "")
                    + ", none is "
                    + dtype + "; use Parameter.weight()");
        }
        return vector;
    }

    /**
     * Returns the gradients of all parameters that are trained as one vector, FLOAT32. Where {@link ModelPlan#productGradients} has given
     * some another type, they are not among them; {@link #gradientVectors} has all.
     *
     * @throws IllegalStateException when the parameters are closed, or their scope was restarted
     */
    public Tensor gradients() {
        ensureOpen();
        return vectors.gradients;
    }

    /**
     * Returns {@link #gradients}, and behind it the vector of those that products write in another type, if there are any.
     *
     * @throws IllegalStateException when the parameters are closed, or their scope was restarted
     */
    public List<Tensor> gradientVectors() {
        ensureOpen();
        return vectors.gradientVectors;
    }

    /**
     * For optimizers: returns the number of elements of all gradients that this rank updates, with those between parameters.
     *
     * @throws IllegalStateException when the parameters are closed, or their scope was restarted
     */
    public long gradientCount() {
        ensureOpen();
        return vectors.gradientCount();
    }

    /**
     * Checks that the parameters have their memory, as each launch of a graph that writes their gradients does.
     *
     * @throws IllegalStateException when they are closed, or their scope was restarted
     */
    public void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the parameters are closed; make others with Parameters.allocate");
        }
        if (!vectors.isLive()) {
            throw new IllegalStateException(
                    "the parameters have lost their memory: their scope was restarted; close them"
                            + " and call Parameters.allocate again");
        }
    }

    /** Returns whether nobody has closed them. */
    public boolean isOpen() {
        return !closed;
    }

    /** Returns whether there is something left to close: the device closes the memory, but not what was adopted. */
    private boolean holds() {
        return hasMemory() || !adopted.isEmpty();
    }

    boolean hasMemory() {
        return !closed && vectors.isLive() && vectors.gradients.isLive();
    }

    /** Returns the ranges of trained parameters that optimizers update in the same way, in the order of the gradients. */
    public List<ParameterRange> ranges() {
        return ranges;
    }

    /** For sharding: returns the access to places, use and lent memory of groups. */
    public ParameterAccess access() {
        return sharing;
    }

    @Nullable
    ParameterHooks use() {
        return sharing.use();
    }

    /** Returns the places where a recipe may cast, in the order of their declaration. */
    public List<QuantizerSite> quantizers() {
        return quantizers;
    }

    /** Returns the ranks that split the layers. */
    public TensorParallel tensorParallel() {
        return tensorParallel;
    }

    /** Returns the number of elements of this rank's parameters, without alignment. */
    public long count() {
        return all.stream().mapToLong(p -> p.shape().count()).sum();
    }

    /**
     * Returns the bytes of weights and gradients, without weights that are kept {@link WeightStorage#QUANTIZED_ONLY}, whose memory the
     * quantizers own.
     */
    public long byteSize() {
        return vectors.byteSize();
    }

    /** Returns the scope that owns the memory; optimizers run on its stream. */
    public Scope scope() {
        return vectors.scope;
    }

    /** Returns the number of steps taken: calls of {@link #nextStep}, plus the number from a loaded state. */
    public long step() {
        return steps.step();
    }

    /**
     * Enqueues zeroing of the gradients that no backward pass of this step has written, so that a norm or an optimizer reads 0 there, and
     * sums over tensor-parallel ranks of the gradients of which each rank has computed a term. A second call in one step does nothing.
     *
     * @throws IllegalStateException inside {@code Communicator.group}
     */
    public void completeGradients() {
        Inside.state(scope().stream()).ensureNotGrouping("completeGradients");
        sharing.stepping();
        if (vectors.shard == null) { // Else the strategy that sums sharded gradients has completed them.
            for (int i = 0; i < all.size(); i++) {
                all.get(i).completeGradient(scope().stream());
            }
        }
        partials.sum(steps.generation());
    }

    /** Throws if a backward call would add a term to a gradient that was summed over ranks or stages. */
    void ensureUnsummed(Parameter parameter) {
        partials.ensureUnsummed(parameter, steps.generation());
    }

    /**
     * Counts a step: the next backward pass overwrites the gradients. Optimizers call this once they have used the gradients.
     *
     * @throws IllegalStateException inside {@code Communicator.group}
     */
    public void nextStep() {
        ensureNextStep(scope().stream());
        steps.next(null);
    }

    /**
     * Counts a step that the device may have skipped, as it skips a step whose gradients are not finite under a loss scale. The actions of
     * {@link #atNextStep} then change nothing on the device.
     *
     * @param skip INT32 [1]: 1 where the step was skipped
     * @throws IllegalArgumentException when type, shape or device do not fit
     * @throws IllegalStateException inside {@code Communicator.group}
     */
    public void nextStep(Tensor skip) {
        Stream stream = scope().stream();
        ensureNextStep(stream);
        steps.next(Checks.vector(stream, "skip", skip, DType.INT32, 1));
    }

    private static void ensureNextStep(Stream stream) {
        Inside.state(stream).ensureCurrent();
        Inside.state(stream).ensureNotGrouping("nextStep");
    }

    /**
     * For actions of {@link #atNextStep}: returns INT32 [1], 1 if the device has skipped the step that ends; null if no step can be
     * skipped.
     */
    public @Nullable Tensor skip() {
        return steps.skip();
    }

    /** Runs {@code action} at the end of every {@link #nextStep}, such as the update of scales. */
    public void atNextStep(Runnable action) {
        steps.atNextStep(action);
    }

    /** Runs {@code action} at the end of every {@link #forgetGradients}. */
    public void atForgetting(Runnable action) {
        steps.atForgetting(action);
    }

    /** Stops running {@code action}. */
    public void forget(Runnable action) {
        steps.forget(action);
    }

    /**
     * Abandons the gradients of this step, such as those of a backward pass that failed: the next backward pass overwrites them. While a
     * stream captures, this happens now, not at the graph's launches.
     */
    public void forgetGradients() {
        Inside.state(scope().stream()).ensureCurrent();
        steps.forgetGradients();
    }

    /**
     * Announces that weights were written from outside: optimizers copy them to their masters before their next step, and recipes cast them
     * anew. Writes by {@link Tensor#set}, {@link Tensor#copyFrom} and {@link Tensor#zero} are noticed without this call; writes by kernels
     * need it. In a capture the call also holds for each launch of the graph. If weights are sharded, all ranks must write theirs, or call
     * this, between the same calls of layers, since whole weights are gathered again.
     */
    public void changed() {
        Stream stream = scope().stream();
        Capture.countChange(
                Inside.capture(stream),
                Inside.state(stream).capture(),
                this,
                Parameters::countChange,
                Parameters::countCapturedChange);
    }

    /**
     * For optimizers: returns whether the present capture has recorded writes of weights from outside, by a method of {@link Tensor} or
     * announced by {@link #changed}.
     */
    public boolean isChangedInCapture() {
        Capture capture = Inside.state(scope().stream()).capture();
        return capture != null && (capture.changes(this) || vectors.isWrittenBy(capture));
    }

    /** Checks that no {@link SharedWeights} offer these weights, and nobody borrows them. */
    void ensureUnshared(String call) {
        if (vectors.isShared()) {
            throw new IllegalStateException(
                    call + ": expected weights that only this thread reads, got those that threads"
                            + " share; close their SharedWeights and all that they lend to first");
        }
    }

    private void countChange() {
        vectors.changed();
        steps.changeWeights();
    }

    private void countCapturedChange(Capture capture) {
        vectors.changed(capture);
        steps.changeWeights();
    }

    /**
     * For optimizers: announces that the step which is enqueued now writes weights, also at each launch of a graph that captures it. From
     * then on backward calls of earlier forward calls are refused, since these have read other weights.
     *
     * @throws IllegalStateException while the weights are shared
     */
    public void updating() {
        ensureUnshared("step");
        steps.changeWeightsEachStep();
    }

    /**
     * For passes: returns the number of the latest change of these weights, counted over all changes on the device. Writes by methods of
     * {@link Tensor} count if they went to weights of the type of {@code parameter}, which lie in one vector.
     */
    public long changedAt(Parameter parameter) {
        return Math.max(
                steps.changedAt(),
                vectors.writtenAt(Checks.given("parameter", parameter).placedType()));
    }

    /** Returns a number that changes with each {@link #changed} and each write of weights by a method of {@link Tensor}. */
    public int version() {
        return vectors.version();
    }

    /**
     * Lists the state of the weights that is needed to go on exactly: each weight by its name, and the number of steps. A weight that is
     * kept {@link WeightStorage#QUANTIZED_ONLY} is saved dequantized, in the model's type, and cast when it is loaded, from FLOAT32,
     * BFLOAT16 or FLOAT16, with the recipe's scale at that time.
     *
     * @throws IllegalStateException when weights are sharded among ranks, or are kept QUANTIZED_ONLY and have no quantizers yet
     */
    public State state() {
        return states.weightsAndStep();
    }

    /**
     * Lists the weights alone, each by its name, to begin with weights that were trained before. They can be loaded from a file of weights,
     * and from the file of a whole run, whose other entries are ignored: numbers such as that of the steps, the optimizer's state, the
     * scales of a recipe, the loss scale. A tensor that belongs to no weight of this model is refused. The file may have the weights in
     * FLOAT32, BFLOAT16 or FLOAT16; they are converted to the model's type: exactly to a wider type, rounded to nearest even to a narrower
     * one. From a run with 16-bit weights these are loaded, not their masters; an optimizer makes its masters of them before its next step.
     *
     * {@snippet file="dev/chagres/sharding/TrainedWeightsTest.java" region="one"}
     *
     * @throws IllegalStateException when weights are sharded among ranks, which load them by {@code
     *     RunState}; or as {@link #state()}
     */
    public State weightState() {
        if (tensorParallel.isSplit()) {
            throw new IllegalStateException("weightState: expected whole layers, got those of " + tensorParallel
                    + "; call RunState.of(strategy).over(mesh)");
        }
        sharing.ensureAllStages();
        return states.weightsAlone(quantizers);
    }

    /**
     * For norms: returns a number that is another one once gradients were written or forgotten, or a step has used them. In a capture the
     * calls that it has recorded count until it ends.
     */
    public long gradientChanges() {
        return steps.gradientChanges() + CapturedGradients.changes(this);
    }

    /** Says that gradients are written now. */
    void changeGradients() {
        steps.changeGradients();
    }

    int generation() {
        return steps.generation();
    }

    /** Marks all gradients as not written in this step, and returns the new generation. */
    int renewGradients() {
        steps.renew();
        return steps.generation();
    }

    /** Returns a table of the parameters: name, shape, type, elements, bytes, and the totals. */
    @Override
    public String toString() {
        return ParameterTable.of(this);
    }

    /**
     * Takes {@code child} over, to close it before these parameters are closed; its {@code close} must throw nothing checked and may be
     * called twice.
     *
     * @throws IllegalArgumentException when it is these parameters themselves, or was adopted already
     */
    public void adopt(AutoCloseable child) {
        if (Checks.given("child", child) == this || adopted.contains(child)) {
            throw new IllegalArgumentException("child: expected what these parameters do not close yet, got "
                    + (child == this ? "the parameters themselves" : "it a second time"));
        }
        adopted.add(child);
    }

    /** Gives {@code child} up, because it was closed. */
    public void disown(AutoCloseable child) {
        adopted.remove(child);
    }

    /** Frees weights and gradients. A second call does nothing. */
    @Override
    public void close() {
        Inside.state(scope().stream()).ensureCloses();
        List<AutoCloseable> children = List.copyOf(adopted);
        adopted.clear();
        try {
            Closing.newestFirst(children);
        } finally {
            closed = true;
            Leaks.closed(trace);
            scope().close();
        }
    }
}
