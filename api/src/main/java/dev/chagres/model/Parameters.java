package dev.chagres.model;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.Closing;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongFunction;
import org.jspecify.annotations.Nullable;

// Over 400 lines: most of them are Javadoc of a wide public API. ParameterAllocation and the classes of the fields do
// the work.

/**
 * The memory of a model's parameters: weights, a vector for each type, and FLOAT32 gradients of what is trained, one vector. Each
 * parameter is a view of both. Groups of the plan lie side by side; inside a group what decays comes first.
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
    private final ParameterSharing sharing;
    private final TensorParallel tensorParallel;
    private final List<QuantizerSite> quantizers;
    private final StepCount steps;
    final PartialGradients partials;
    final ParameterStates states;
    /** What is closed before the memory goes. */
    private final List<AutoCloseable> adopted = new ArrayList<>();

    /** What the capture under way records of the gradients. */
    @Nullable
    CapturedGradients captured;

    private boolean closed;

    /** For {@link ParameterAllocation}, which then tells each parameter where it lies. */
    Parameters(ModelPlan plan, DType dtype, ParameterLayout layout, ParameterVectors vectors, long seed) {
        this.vectors = vectors;
        this.dtype = dtype;
        this.seed = seed;
        Scope scope = vectors.scope();
        if (vectors.weightScope() != scope) {
            adopted.add(vectors.weightScope());
        }
        all = List.copyOf(plan.groups().values().stream().flatMap(List::stream).toList());
        tensorParallel = plan.tensorParallel();
        quantizers = List.copyOf(plan.quantizers());
        steps = new StepCount(this, scope.stream());
        states = new ParameterStates(all, quantizers, vectors, steps);
        sharing = new ParameterSharing(this, layout.groups(), vectors.shard(), plan.contextParallel());
        partials = new PartialGradients(all, tensorParallel, scope, sharing::gradient);
        ranges = vectors.ranges(layout);
        if (tensorParallel.isSplit()) {
            NormOverRanks norm = new NormOverRanks(scope, tensorParallel.group());
            adopted.add(norm);
            sharing.step(norm);
        }
    }

    /**
     * Takes memory for everything in {@code plan} and begins every parameter as it was declared. Gradients begin as 0.
     *
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed equal seeds give equal weights, on every machine
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed) {
        return allocate(device, plan, dtype, seed, WeightStorage.MODEL_TYPE);
    }

    /**
     * Takes memory as {@link #allocate(Device, ModelPlan, DType, long)} does, and keeps weights of products as {@code storage}
     * says.
     *
     * {@snippet file="dev/chagres/ExamplesTest.java" region="quantizedWeights"}
     *
     * @param dtype type of the weights that were declared without one; of 16 bits unless {@code storage} is {@link
     *     WeightStorage#MODEL_TYPE}
     * @throws IllegalArgumentException when the type is no float, or not of 16 bits where it must be, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed, WeightStorage storage) {
        return ParameterAllocation.allocate(device, plan, dtype, seed, storage, null, null);
    }

    /**
     * For sharding: takes memory for the part of a model that one rank keeps, of a plan that {@link ModelPlan#padGroups} has padded for
     * as many ranks. Gradients, and weights that are shared out, have memory in layers' calls only while someone lends it; {@link
     * #ranges} and {@link #gradients} are those of the part.
     *
     * @throws IllegalArgumentException when the type is no float, the plan is empty, or it is not padded for so many ranks
     * @throws IllegalStateException when a parameter has memory already
     */
    public static Parameters allocate(Device device, ModelPlan plan, DType dtype, long seed, ParameterShard shard) {
        return ParameterAllocation.allocate(device, plan, dtype, seed, shard, null);
    }

    /**
     * For sharding: takes memory as {@link #allocate(Device, ModelPlan, DType, long, ParameterShard)} does, that of weights elsewhere.
     *
     * @param weightMemory is asked once for a scope of so many bytes, which these parameters close
     * @throws IllegalArgumentException as without it
     * @throws IllegalStateException when a parameter has memory already
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
     * For recipes: writes the first values of a parameter, as it was declared, and waits for that.
     *
     * @param target as many elements as the parameter has, FLOAT32, BFLOAT16 or FLOAT16
     */
    public void drawFirst(Parameter parameter, Tensor target) {
        Checks.given("parameter", parameter);
        Checks.given("target", target).zero(scope().stream());
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
                .orElseThrow(() -> new IllegalArgumentException("name: expected that of a parameter, got " + name));
    }

    /** Returns the type of the weights that were declared without one. */
    public DType dtype() {
        return dtype;
    }

    /**
     * Returns all weights of the model's type as one vector; elements between parameters are 0 and stay so. Whoever lets kernels
     * write to it calls {@link #changed} afterwards.
     *
     * @throws IllegalStateException when every parameter has a type of its own, or the parameters are closed
     */
    public Tensor weights() {
        ensureOpen();
        Tensor vector = vectors.weightsOrNull(dtype);
        if (vector == null) {
            throw new IllegalStateException("weights: every parameter was declared with a type of its own"
                    + (all.stream().anyMatch(Parameter::isEightBitsOnly) ? " or is kept in eight bits" : "")
                    + ", none is "
                    + dtype + "; use Parameter.weight()");
        }
        return vector;
    }

    /**
     * Returns the gradients of all parameters that are trained as one vector, FLOAT32.
     *
     * @throws IllegalStateException when the parameters are closed, or their scope was restarted
     */
    public Tensor gradients() {
        ensureOpen();
        return vectors.gradients();
    }

    /**
     * Checks that the parameters have their memory, as each launch of a graph does that writes their gradients.
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

    boolean isOpen() {
        return !closed;
    }

    /** Returns the stretches of trained parameters that optimizers treat alike, in the order of the gradients. */
    public List<ParameterRange> ranges() {
        return ranges;
    }

    /** For sharding: returns where groups lie, who is told of their use, and who lends them memory. */
    public ParameterSharing sharing() {
        return sharing;
    }

    @Nullable
    ParameterUse use() {
        return sharing.use();
    }

    /** Returns the places where a recipe may cast, in the order of their declaration. */
    public List<QuantizerSite> quantizers() {
        return quantizers;
    }

    /** Returns the ranks among which layers are split. */
    public TensorParallel tensorParallel() {
        return tensorParallel;
    }

    /** Returns the number of elements of all parameters as this rank has them, without alignment. */
    public long count() {
        return all.stream().mapToLong(p -> p.shape().count()).sum();
    }

    /** Returns the bytes of weights and gradients; what is kept {@link WeightStorage#QUANTIZED_ONLY} lies with the quantizers. */
    public long byteSize() {
        return vectors.byteSize();
    }

    /** Returns the scope that owns the memory; what an optimizer enqueues runs on its stream. */
    public Scope scope() {
        return vectors.scope();
    }

    /** Returns the number of steps taken: of calls of {@link #nextStep}, and what a loaded state said. */
    public long step() {
        return steps.step();
    }

    /**
     * Enqueues zeroing of the gradients that no backward pass of this step has written, so that a norm or an optimizer sees 0
     * there, and the sums over tensor-parallel ranks of those that each has computed a term of. A second call in one step does
     * nothing.
     *
     * @throws IllegalStateException inside {@code Communicator.group}
     */
    public void completeGradients() {
        Inside.state(scope().stream()).ensureNotGrouping("completeGradients");
        sharing.stepping();
        for (int i = 0; vectors.shard() == null && i < all.size(); i++) { // Whoever sums parts has completed them.
            all.get(i).completeGradient(scope().stream());
        }
        partials.sum(steps.generation());
    }

    /** Refuses a backward call that would add a term to a gradient that was summed over ranks or stages. */
    void ensureUnsummed(Parameter parameter) {
        partials.ensureUnsummed(parameter, steps.generation());
    }

    /**
     * Counts a step: the next backward pass overwrites the gradients. Optimizers call it once they have used them.
     *
     * @throws IllegalStateException inside {@code Communicator.group}
     */
    public void nextStep() {
        ensureNextStep(scope().stream());
        steps.next(null);
    }

    /**
     * Counts a step that the device may have skipped: under a loss scale it skips a step whose gradients are not finite. What {@link
     * #atNextStep} changes on the device then stays as it was, too.
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
     * For what {@link #atNextStep} runs: returns INT32 [1], 1 where the device has skipped the step that ends; null where no step can
     * be skipped.
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

    /** Runs {@code action} no more. */
    public void forget(Runnable action) {
        steps.forget(action);
    }

    /**
     * Abandons the gradients of this step, such as those of a backward pass that failed: the next one overwrites them. While a stream
     * captures, it does so now, not at the graph's launches.
     */
    public void forgetGradients() {
        Inside.state(scope().stream()).ensureCurrent();
        steps.forgetGradients();
    }

    /**
     * Says that weights were written from outside: optimizers take them over before their next step, and recipes cast them anew. What
     * {@link Tensor#set}, {@link Tensor#copyFrom} and {@link Tensor#zero} write is noticed without this call; what kernels write
     * needs it. While the stream captures it says so of each launch of the graph, too. Where each rank has a part of the weights, all ranks
     * write theirs, or call this, between the same calls of layers: whole weights are gathered anew.
     */
    public void changed() {
        Capture.nowAndEachLaunch(Inside.state(scope().stream()).capture(), this, Parameters::countChange);
    }

    /** For optimizers: returns whether the capture under way has recorded writes of weights from outside, such as {@link #changed} tells of. */
    public boolean isChangedInCapture() {
        Capture capture = Inside.state(scope().stream()).capture();
        return capture != null && (capture.changes(this) || vectors.isWrittenBy(capture));
    }

    private void countChange() {
        vectors.changed();
        steps.changeWeights();
    }

    /**
     * For optimizers: says that the step which is enqueued now writes weights, also at each launch of a graph that captures it. Backward calls
     * of earlier forward calls, which have read others, are refused from then on.
     */
    public void updating() {
        steps.changeWeightsEachStep();
    }

    /** For passes: returns the number of the latest change among those of all weights on the device. */
    public long changedAt() {
        return steps.changedAt();
    }

    /** Returns a number that is another one after {@link #changed}, and after a method of {@link Tensor} has written weights. */
    public int version() {
        return vectors.version();
    }

    /**
     * Lists what must be saved of the weights to go on exactly: each weight by its name, and the number of steps. A weight that is kept
     * {@link WeightStorage#QUANTIZED_ONLY} is saved in the model's type, as what its eight bits stand for, and cast when it is loaded, from
     * FLOAT32, BFLOAT16 or FLOAT16, with the scale that the recipe has by then.
     *
     * @throws IllegalStateException when weights lie in parts on several ranks, or are kept QUANTIZED_ONLY and have no quantizers yet
     */
    public State state() {
        return states.weightsAndStep();
    }

    /**
     * Lists the weights alone, each by its name, to begin with those that were trained before. They are loaded from a file of weights, and
     * from that of a whole run, of which everything else is left out: numbers such as that of the steps, what an optimizer keeps, the
     * scales of a recipe, the loss scale. A tensor that belongs to no weight of this model is refused. The file may have the weights in FLOAT32,
     * BFLOAT16 or FLOAT16, whichever of these the model has: in a wider type they stay the same numbers, in a narrower one they are rounded to nearest even. Of
     * weights of 16 bits those bits are taken that passes multiply; an optimizer makes its masters of them before its next step.
     *
     * {@snippet file="dev/chagres/layer/TrainedWeightsTest.java" region="one"}
     *
     * @throws IllegalStateException when weights lie in parts on several ranks, which load them by {@code Strategy.weightState}, {@code
     *     TensorParallelState.ofWeights} or {@code PipelineParallel.weightState}; or as {@link #state()}
     */
    public State weightState() {
        if (tensorParallel.isSplit()) {
            throw new IllegalStateException("weightState: expected whole layers, got those of " + tensorParallel
                    + "; ask TensorParallelState.ofWeights, which has those of all ranks");
        }
        sharing.ensureAllStages();
        return states.weightsAlone(quantizers);
    }

    int generation() {
        return steps.generation();
    }

    /** Says that no gradient that is there belongs to this step, and returns the generation of those that will. */
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
     * Closes {@code child}, whose {@code close} throws nothing checked and may be called twice, before these parameters.
     *
     * @throws IllegalArgumentException when it is these parameters themselves, or they will close it already
     */
    public void adopt(AutoCloseable child) {
        if (Checks.given("child", child) == this || adopted.contains(child)) {
            throw new IllegalArgumentException("child: expected what these parameters do not close yet, got "
                    + (child == this ? "the parameters themselves" : "it a second time"));
        }
        adopted.add(child);
    }

    /** Closes {@code child} no more: it has closed itself. */
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
            scope().close();
        }
    }
}
