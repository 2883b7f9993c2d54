package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.NormReduction;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The access of strategies that shard a model among ranks to its {@link Parameters}: where groups lie, when they are used, and memory that
 * is lent to them for the time of use.
 *
 * <p>Threading: the device's thread.
 */
public final class ParameterAccess {
    private static final long LONGEST_PIECE = 1L << 30;

    private final Parameters parameters;
    private final List<FlatGroup> groups;
    /** Null if this process has the whole model. */
    private final @Nullable ParameterShard shard;

    private final ModelPlan plan;
    private @Nullable ParameterHooks use;
    /** The reductions, in order, that turn this rank's norm into the norm over all ranks. */
    private final List<NormReduction> norms = new ArrayList<>();
    /** Null if this rank has all stages of the model. */
    private @Nullable PipelineStages stages;

    private boolean counted;
    /**
     * The settings of an optimizer.
     *
     * @param ofWeights must be the same on all ranks that update these weights
     * @param ofModel must also be the same on ranks that update other parts of the model
     */
    private record Settings(String ofWeights, String ofModel) {}

    private final IdentityHashMap<Object, Settings> optimizers = new IdentityHashMap<>();

    ParameterAccess(Parameters parameters, List<FlatGroup> groups, @Nullable ParameterShard shard, ModelPlan plan) {
        this.parameters = parameters;
        this.groups = List.copyOf(groups);
        this.shard = shard;
        this.plan = plan;
    }

    /** Returns the ranks that split the tokens, so that each computes a term of every gradient. */
    public ContextParallel contextParallel() {
        return plan.contextParallel();
    }

    /** Returns the parameters of the whole model: where this rank has some stages of it alone, those of the others, too, without memory. */
    public List<Parameter> ofModel() {
        return plan.ofModel();
    }

    /** Returns of how many elements each parameter begins at a multiple, in its group and in this rank's part of it. */
    public int alignment() {
        return plan.alignment();
    }

    /**
     * For optimizers: announces that this rank has written the weights that it updates, outside of a step, so that ranks gather them again and
     * copies of them are outdated.
     */
    public void rewritten() {
        parameters.changed();
        ParameterHooks present = use;
        if (present != null) {
            present.rewritten();
        }
    }

    /**
     * For optimizers: enqueues the sum of {@code values} over the ranks that shard what this rank updates; nothing where they are whole. Each
     * of these ranks calls it.
     */
    public void sumOfShards(Tensor values) {
        ParameterHooks present = use;
        if (present != null) {
            present.sumOfShards(values);
        }
    }

    /**
     * For optimizers: enqueues the sum of {@code values} over all ranks that have parts of the model. Of parameters that several of them have whole,
     * one {@link #counts} them. Each of these ranks calls it.
     */
    public void sumOfModel(Tensor values) {
        sumOfShards(values);
        parameters.tensorParallel().sum(values, stream());
        PipelineStages present = stages;
        if (present != null) {
            present.sum(values);
        }
    }

    /** Returns whether this rank counts its part of a parameter, of the ranks that have the same. */
    public boolean counts(Parameter parameter) {
        PipelineStages present = stages;
        return (parameters.tensorParallel().rank() == 0 || parameter.split() != null)
                && (present == null || present.counts(parameter));
    }

    /** For optimizers: returns the ranks that shard what this rank updates; null where it updates all, or no strategy has the parameters. */
    public @Nullable ShardRanks shardRanks() {
        ParameterHooks present = use;
        return present == null ? null : present.shardRanks();
    }

    /** Returns the groups of the plan in order, and where their gradients lie. */
    public List<FlatGroup> groups() {
        return groups;
    }

    /** Returns the part of the model that this rank keeps; null if it keeps all. */
    public @Nullable ParameterShard shard() {
        return shard;
    }

    /**
     * Returns the vector of all weights of a type, or of this rank's parts.
     *
     * @throws NullPointerException when no parameter has the type
     */
    public Tensor vector(DType type) {
        return parameters.vectors.weights(type);
    }

    /** Returns {@link Parameters#state()} without the weights: the number of steps, and the actions after loading. */
    public State stepState() {
        return parameters.states.step();
    }

    /**
     * Returns {@link Parameters#weightState()} without the weights: which entries of a file are ignored, and the actions after loading.
     *
     * @param model the whole model, if these are the parameters of a part of it; else null
     */
    public State weightStepState(@Nullable ModelPlan model) {
        return parameters.states.besideWeights(
                model == null
                        ? parameters.all()
                        : model.groups().values().stream().flatMap(List::stream).toList(),
                model == null ? parameters.quantizers() : model.quantizers());
    }

    /**
     * Notifies {@code newUse} from now on when weights are read and gradients written.
     *
     * @throws IllegalStateException when there is another observer
     */
    public void observe(ParameterHooks newUse) {
        if (use != newUse) {
            ensureUnshared();
        }
        use = Checks.given("newUse", newUse);
    }

    /**
     * Checks that there is no observer of the parameters' use, and that ranks can sum the gradients.
     *
     * @throws IllegalStateException when there is one, or gradients of products have another type
     */
    public void ensureUnshared() {
        ensureSummable();
        if (use != null) {
            throw new IllegalStateException(
                    "the parameters belong to " + use + " already; close that before another shards them");
        }
    }

    private void ensureSummable() {
        if (plan.productGradients() != DType.FLOAT32) {
            throw new IllegalStateException("parameters: " + ParameterAllocation.summed(plan.productGradients()));
        }
    }

    /** Stops notifying {@code present}. */
    public void forget(ParameterHooks present) {
        if (use == present) {
            use = null;
        }
    }

    @Nullable
    ParameterHooks use() {
        return use;
    }

    /** Returns whether gradients are summed over ranks or sharded among them. */
    boolean isOverRanks() {
        return use != null || stages != null || parameters.tensorParallel().isSplit();
    }

    /**
     * Called when a norm or an optimizer is about to read the gradients: the strategy that sums them over ranks throws if it has not done
     * so.
     */
    void stepping() {
        ParameterHooks present = use;
        if (present != null) {
            present.stepping();
        } else if (contextParallel().isSplit()) {
            throw new IllegalStateException(
                    "gradients: expected their sum over " + contextParallel().size()
                            + " context-parallel ranks, got that of only this rank's tokens; make a Strategy over"
                            + " these ranks,"
                            + " such as DataParallel.of(parameters, communicator), and call its sumGradients");
        }
    }

    /** Extends norms to further ranks, which have other parameters than this one. Each rank must make these calls in the same order. */
    public void step(NormReduction further) {
        norms.add(Checks.given("further", further));
    }

    /** Removes ranks from norms, because some of them have failed. */
    public void forget(NormReduction former) {
        norms.remove(Checks.given("former", former));
    }

    /**
     * Enqueues {@code norm = sqrt(sum over ranks of norm^2)} over all ranks that split the model; nothing if this rank has the whole model.
     *
     * @param norm FLOAT32 [1]: the norm of the gradients that this rank counts
     * @param skip INT32 [1]: set to 1 if a rank's norm is not finite
     */
    public void normOverRanks(Tensor norm, Tensor skip) {
        for (int i = 0; i < norms.size(); i++) {
            norms.get(i).normOverRanks(norm, skip);
        }
    }

    /**
     * Gives {@code parameter} a weight, which layers read from now on.
     *
     * @throws IllegalArgumentException when it has another shape than the parameter
     */
    public void lendWeight(Parameter parameter, Tensor weight) {
        ensureFits(parameter, "weight", weight);
        parameter.lendWeight(parameters, weight);
    }

    /**
     * Gives {@code parameter} a gradient, which the next backward pass overwrites.
     *
     * @param gradient FLOAT32 or, where the parameter {@link Parameter#isWrittenByProducts}, the type of its weight
     * @throws IllegalArgumentException when it has another shape than the parameter, or another type
     */
    public void lendGradient(Parameter parameter, Tensor gradient) {
        ensureFits(parameter, "gradient", gradient);
        if (!parameter.isWrittenByProducts() || gradient.dtype() != parameter.placedType()) {
            Checks.typed(stream(), "gradient", gradient, DType.FLOAT32);
        }
        parameter.lendGradient(gradient);
    }

    /**
     * Takes the lent gradients of a group's parameters back: reading them throws until other memory is lent.
     *
     * @param group its number in {@link #groups}
     * @throws IllegalArgumentException when there is no such group
     */
    public void takeBackGradients(int group) {
        List<Parameter> members = members(group);
        for (int i = 0; i < members.size(); i++) {
            members.get(i).takeBackGradient();
        }
    }

    private static void ensureFits(Parameter parameter, String argument, Tensor tensor) {
        boolean fits = Checks.given(argument, tensor).rank()
                == Checks.given("parameter", parameter).shape().rank();
        for (int i = 0; fits && i < tensor.rank(); i++) {
            fits = tensor.size(i) == parameter.shape().size(i);
        }
        if (!fits) {
            throw new IllegalArgumentException(
                    argument + ": expected the shape of " + parameter + ", got " + Checks.describe(tensor));
        }
    }

    /**
     * Makes these the parameters of one rank of a pipeline: sums, norms and comparisons then include the other ranks.
     *
     * @throws IllegalStateException when this was called already, or a norm uses the gradients
     */
    public void stages(PipelineStages newStages) {
        ensureUnstaged();
        stages = Checks.given("newStages", newStages);
        parameters.partials.sumOverStages(newStages);
        step(newStages);
    }

    /** Returns the parameters that a rank of the pipeline has; none without a pipeline. */
    public List<Parameter> ofStages(int rank) {
        return stages == null ? List.of() : stages.of(rank);
    }

    /** Returns whether these are the parameters of one rank of a pipeline. */
    public boolean isStaged() {
        return stages != null;
    }

    /**
     * Checks that these can become the parameters of one rank of a pipeline.
     *
     * @throws IllegalStateException when they are already, a norm uses the gradients already, or gradients of products have another type
     */
    public void ensureUnstaged() {
        ensureSummable();
        if (stages != null) {
            throw new IllegalStateException("the parameters belong to " + stages
                    + " already, even after that is closed; allocate new Parameters of the same part");
        }
        if (counted) {
            throw new IllegalStateException(
                    "parameters: expected no GradientNorm yet, got one, which would count tied parameters of several"
                            + " stages more than once; make the GradientNorm after the pipeline");
        }
    }

    /**
     * Checks that this rank has all stages of the model.
     *
     * @throws IllegalStateException when it has only those of one of several ranks of a pipeline
     */
    public void ensureAllStages() {
        if (stages != null && stages.size() > 1) {
            throw new IllegalStateException("state: expected parameters of the whole model, got those of " + stages
                    + "; call RunState.of(strategy).stages(pipeline)");
        }
    }

    /** Enqueues {@code value = max over the stages of a pipeline of value} for each of {@code values}; nothing without a pipeline. */
    public void maxOverStages(List<Tensor> values) {
        if (stages != null) {
            stages.max(values);
        }
    }

    /**
     * Returns the gradients that this rank counts in a norm over all ranks, so that each element is counted once: among tensor-parallel
     * ranks, rank 0 counts all of its gradients and the others only those that are split; a parameter on several stages of a pipeline
     * counts at its first stage; and of sharded gradients each rank counts its part. None is longer than 2^30 elements. Gradients of products
     * may have a type of their own.
     *
     * @param scope hands out the views
     */
    public List<Tensor> counted(Scope scope) {
        Checks.given("scope", scope);
        parameters.ensureOpen();
        List<Tensor> pieces = new ArrayList<>();
        counted = true;
        boolean first = parameters.tensorParallel().rank() == 0;
        PipelineStages present = stages;
        // The padding between sharded parameters may hold values of another group.
        if (shard == null && first && (present == null || present.countsAll())) {
            parameters.gradientVectors().forEach(vector -> addPieces(vector, scope, pieces));
            return pieces;
        }
        for (Parameter parameter : parameters.all()) {
            Tensor kept = counts(parameter) ? gradient(parameter, scope) : null;
            if (kept != null) {
                addPieces(kept, scope, pieces);
            }
        }
        return pieces;
    }

    /**
     * Returns this rank's part of the gradient of {@code parameter}; null if it has none.
     *
     * @param scope hands out the view
     */
    @Nullable
    Tensor gradient(Parameter parameter, Scope scope) {
        if (!parameter.isTrained()) {
            return null;
        }
        return shard == null
                ? parameter.gradient()
                : ShardRanges.gradient(
                        parameter, groups.get(parameter.group()), shard.updated(), parameters.gradients(), scope);
    }

    /**
     * For optimizers: registers {@code optimizer}, which updates these parameters, with settings that are compared among ranks.
     *
     * @param ofWeights those that ranks which update the same weights must have in common
     * @param ofModel those that the ranks of a pipeline must have in common
     */
    public void optimizedBy(Object optimizer, String ofWeights, String ofModel) {
        optimizers.put(
                Checks.given("optimizer", optimizer),
                new Settings(Checks.given("ofWeights", ofWeights), Checks.given("ofModel", ofModel)));
    }

    /** For optimizers: removes {@code optimizer}, which no longer updates these parameters. */
    public void forgetOptimizer(Object optimizer) {
        optimizers.remove(Checks.given("optimizer", optimizer));
    }

    /**
     * Returns the settings of the optimizers of these parameters that ranks with the same weights must have in common; empty if there is
     * none.
     */
    public String optimizerSettings() {
        return optimizerSettings(Settings::ofWeights);
    }

    /** Returns those that ranks with other parts of the model must have in common; empty if there is no optimizer. */
    public String optimizerSettingsOfModel() {
        return optimizerSettings(Settings::ofModel);
    }

    private String optimizerSettings(Function<Settings, String> which) {
        return optimizers.values().stream().map(which).sorted().collect(Collectors.joining(" and "));
    }

    /**
     * For optimizers: returns the first element, in the order of all gradients, of this rank's part of a parameter's gradient; -1 if it has
     * none.
     */
    public long gradientOffset(Parameter parameter) {
        if (shard == null) {
            return Checks.given("parameter", parameter).isTrained() ? parameter.gradientOffset() : -1;
        }
        try (Scope views = parameters.scope().open()) {
            Tensor kept = gradient(Checks.given("parameter", parameter), views);
            return kept == null ? -1 : (kept.address() - parameters.gradients().address()) / Float.BYTES;
        }
    }

    private static void addPieces(Tensor gradient, Scope scope, List<Tensor> pieces) {
        for (long begin = 0; begin < gradient.count(); begin += LONGEST_PIECE) {
            pieces.add(scope.view(gradient, begin, Math.min(LONGEST_PIECE, gradient.count() - begin)));
        }
    }

    /**
     * Enqueues zeroing of the gradients of a group that no backward pass of this step has written.
     *
     * @param group its number in {@link #groups}
     * @throws IllegalArgumentException when there is no such group
     */
    public void completeGradients(int group) {
        List<Parameter> members = members(group);
        for (int i = 0; i < members.size(); i++) {
            members.get(i).completeGradient(stream());
        }
    }

    /**
     * Marks the gradients of a group as not written in this step.
     *
     * @param group its number in {@link #groups}
     * @throws IllegalArgumentException when there is no such group
     */
    public void forgetGradients(int group) {
        List<Parameter> members = members(group);
        for (int i = 0; i < members.size(); i++) {
            members.get(i).forgetGradient();
        }
    }

    private List<Parameter> members(int group) {
        if (group < 0 || group >= groups.size()) {
            throw new IllegalArgumentException(
                    "group: expected the number of one of " + groups.size() + " groups, counted from 0, got " + group);
        }
        return groups.get(group).members();
    }

    private Stream stream() {
        return parameters.scope().stream();
    }
}
