package dev.chagres.recipe;

import dev.chagres.MemoryUse;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.State;
import dev.chagres.parameter.StateOwner;
import dev.chagres.recipe.Recipe.Product;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * The state of a recipe for the parameters of one model: scales and their histories, and the eight-bit copies of the weights.
 *
 * <p>Layers named {@value #HEAD} stay in the model's type unless {@link #allocate(Parameters, Recipe, Set)} says otherwise. Weights are
 * cast once a step, for any number of passes. Scales change once a step, in {@link Parameters#nextStep}, which optimizers call; evaluation
 * changes nothing here.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code FP8GlobalStateManager}.
 */
public final class Quantizers implements AutoCloseable, StateOwner {
    /** Layers with this part in their names stay in the model's type by default. */
    public static final String HEAD = QuantizerSite.HEAD;

    private final Parameters parameters;
    private final Scope scope;
    private final RecipeState state;
    /** Indexed by the place's number; null if the place keeps the model's type. */
    private final @Nullable Quantizer[] quantizers;

    private final QuantizedWeights weights;

    /** The reduction among ranks that gather tensors which each has cast a part of; null without such ranks. */
    private final @Nullable AmaxReduction ownReduction;

    private final Runnable update = this::update;
    private final Runnable forgetStep = this::forgetStep;

    private Quantizers(Parameters parameters, Recipe recipe, List<QuantizerSite> covered) {
        this.parameters = parameters;
        int places = parameters.quantizers().size();
        quantizers = new Quantizer[places];
        weights = new QuantizedWeights(places);
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream).countedAs(MemoryUse.Holder.QUANTIZED);
        RecipeState made = null;
        try {
            made = new RecipeState(recipe, covered, new CastMeasurements(parameters, scope), scope);
            Fp8PrimaryWeights held = new Fp8PrimaryWeights(scope);
            for (QuantizerSite site : covered) {
                Quantizer quantizer = made.make(site);
                quantizers[site.index()] = quantizer;
                if (site.role() == Role.WEIGHT && site.weight().hasMemory()) {
                    if (site.weight().isQuantizedOnly()) {
                        held.add(quantizer);
                    } else {
                        weights.add(site, new QuantizedWeightCache(quantizer, site.weight(), scope));
                    }
                }
            }
            for (Fp8PrimaryWeight weight : held.make()) {
                weights.add(weight.site(), weight);
            }
        } catch (RuntimeException | Error failure) {
            if (made != null) {
                made.close();
            }
            scope.close();
            throw failure;
        }
        state = made;
        ownReduction = ownReduction(parameters, stream);
        state.reduceAmax(ownReduction);
        parameters.atNextStep(update);
        parameters.atForgetting(forgetStep);
        parameters.adopt(this);
    }

    /**
     * Allocates the recipe's state and the eight-bit weights, for every place whose name has no part {@value #HEAD}.
     *
     * @throws IllegalArgumentException when the device cannot compute the recipe, or no place is left
     */
    public static Quantizers allocate(Parameters parameters, Recipe recipe) {
        return new Quantizers(parameters, recipe, CoveredSites.outsideHead(parameters, recipe));
    }

    /**
     * Allocates the recipe's state and the eight-bit weights, for every place except those of some groups.
     *
     * @param highPrecision groups of the plan whose products stay in the model's type; the head is cast unless its group is
     *     among them
     * @throws IllegalArgumentException when the device cannot compute the recipe, a group has no product, or no place is left
     */
    public static Quantizers allocate(Parameters parameters, Recipe recipe, Set<String> highPrecision) {
        return new Quantizers(parameters, recipe, CoveredSites.outside(parameters, recipe, highPrecision));
    }

    /** Returns the recipe. */
    public Recipe recipe() {
        return state.recipe;
    }

    /** Returns the parameters whose products these are. */
    public Parameters parameters() {
        return parameters;
    }

    /** Returns whether tensors at {@code site} are cast. */
    public boolean covers(QuantizerSite site) {
        return covering(site) != null;
    }

    private @Nullable Quantizer covering(QuantizerSite site) {
        int index = Checks.given("site", site).index();
        boolean ours = index < quantizers.length && parameters.quantizers().get(index) == site;
        return ours ? quantizers[index] : null;
    }

    /**
     * For authors of layers: returns the quantizer of the tensors at {@code site}.
     *
     * @throws IllegalArgumentException when the place is not covered
     * @throws IllegalStateException when they are closed
     */
    public Quantizer at(QuantizerSite site) {
        ensureOpen();
        Quantizer quantizer = covering(site);
        if (quantizer == null) {
            throw new IllegalArgumentException(
                    "site: expected one that the recipe covers, got " + site + " of group " + site.group());
        }
        return quantizer;
    }

    /** Returns the bytes of the state and the eight-bit weights. */
    public long byteSize() {
        return scope.usedBytes();
    }

    /**
     * For authors of layers: returns the weight in eight bits as {@code product} reads it, for {@link Product#FORWARD} the weight and for
     * {@link Product#INPUT_GRADIENT} its transpose. It is cast now if no pass of this step has cast it. With {@link #shardWeights}, ranks
     * gather it first, and it is valid until the layer's call returns.
     *
     * @throws IllegalArgumentException when the place is not covered, or is none of a weight
     * @throws IllegalStateException when they are closed
     */
    public QuantizedTensor weight(
            QuantizerSite site, Product product, AmaxRecording recording, Scope temporary, Stream stream) {
        Quantizer quantizer = at(site);
        Checks.given("recording", recording);
        QuantizedTensor copies = weights.get(
                site,
                quantizer,
                Checks.given("product", product),
                recording,
                Checks.given("temporary", temporary),
                stream);
        if (measures(site, recording) && weights.hasSource(site)) {
            quantizer.measure(site.weight().weight(), copies, stream);
        }
        return copies;
    }

    /**
     * For authors of layers: enqueues recording of a weight's amax, if the recipe has scales from earlier steps, for a pass that
     * calibrates.
     *
     * @throws IllegalArgumentException when the place is not covered, or is none of a weight
     * @throws IllegalStateException when they are closed
     */
    public void recordWeight(QuantizerSite site, AmaxRecording recording, Scope temporary, Stream stream) {
        at(site);
        if (!weights.recordParts(site)) {
            weight(site, Product.FORWARD, recording, temporary, stream);
        }
    }

    /**
     * For sharding: from now on each rank casts its part of these weights, and ranks gather the parts.
     *
     * @param parts this rank's part of each weight that is gathered in eight bits
     * @param gathered returns gathered weights
     * @param reduction reduces amaxes over the ranks, on the stream that {@link WeightShards#cast} is given
     * @throws IllegalArgumentException when a place is not covered
     * @throws IllegalStateException when they are closed, or ranks cast parts of weights already
     */
    public WeightShards shardWeights(List<WeightShard> parts, AllGatherOutputs gathered, AmaxReduction reduction) {
        Checks.givenAll("parts", parts).forEach(part -> at(part.site()));
        return weights.shardWeights(this, parts, gathered, reduction);
    }

    /** Casts whole weights again. */
    void end(WeightShards ended) {
        weights.end(ended);
    }

    /**
     * Measures the casts of every {@code steps}th training step from now on, in steps whose number is a multiple of it; 0 ends that. At
     * each place the first cast of a step is measured, such as that of the first micro-batch. The measurement reads the tensor and its cast
     * once more; a kernel that casts its own result also writes it in the model's type, or computes it twice. The results of training are
     * the same. Replayed graphs are not measured, nor are weights that ranks gather in eight bits; a {@code StepGraph} enqueues the
     * measured steps one by one.
     *
     * @param steps 0 or more
     * @throws IllegalArgumentException when steps is negative
     * @throws IllegalStateException when they are closed
     */
    public void measureEvery(int steps) {
        ensureOpen();
        state.measurements.every(steps);
    }

    /**
     * Returns the latest measurement of each place, in the order of the plan; empty if there was none. Waits for the stream.
     *
     * @throws IllegalStateException when they are closed
     */
    public List<CastStatistics> statistics() {
        ensureOpen();
        return state.measurements.read();
    }

    /** For authors of layers: returns whether casts of this step are measured. */
    public boolean measures(AmaxRecording recording) {
        return state.measurements.measures(recording);
    }

    /** For authors of layers: returns whether the next cast at {@code site} is measured: it is the first in a measured step. */
    public boolean measures(QuantizerSite site, AmaxRecording recording) {
        return state.measurements.measures(Checks.given("site", site), Checks.given("recording", recording));
    }

    /**
     * For sharding: from now on reduces the amaxes of each step over ranks, before scales are computed from them; null ends that. Only
     * recipes with scales from earlier steps have such amaxes. Sequence-parallel ranks, which gather tensors in eight bits, reduce amaxes
     * among themselves without this call.
     *
     * @throws IllegalStateException when they are closed
     */
    public void reduceAmax(@Nullable AmaxReduction newReduction) {
        ensureOpen();
        state.reduceAmax(newReduction == null ? ownReduction : newReduction);
    }

    /**
     * For sharding: the reduction of the last step's amaxes has succeeded on this rank, so that {@link #discardReduction} does nothing.
     *
     * @throws IllegalStateException when they are closed
     */
    public void confirmReduction() {
        ensureOpen();
        state.confirmReduction();
    }

    /**
     * For sharding: after a rank has failed, enqueues the end of the last step once more with the amaxes of this rank alone, unless
     * {@link #confirmReduction} was called since: NCCL may have written anything to amaxes whose reduction was aborted, and scales and histories
     * were computed from that.
     *
     * @throws IllegalStateException when they are closed
     */
    public void discardReduction() {
        ensureOpen();
        state.discardReduction();
    }

    private static @Nullable AmaxReduction ownReduction(Parameters parameters, Stream stream) {
        TensorParallel ranks = parameters.tensorParallel();
        if (!ranks.isSequenceParallel()) {
            return null;
        }
        return amaxes -> {
            for (int i = 0; i < amaxes.size(); i++) {
                ranks.max(amaxes.get(i), stream);
            }
        };
    }

    /** For authors of layers: returns a number that changes whenever scales from earlier steps change. */
    public int scalesVersion() {
        return state.version();
    }

    /** Returns whether they are open. */
    public boolean isOpen() {
        return !state.isClosed();
    }

    /**
     * Checks that they are open.
     *
     * @throws IllegalStateException when they are closed
     */
    public void ensureOpen() {
        state.ensureOpen();
    }

    /** Returns which of this step's micro-batches have recorded something. */
    StepRecord record() {
        ensureOpen();
        return state.record;
    }

    /**
     * Computes scales from the amaxes that were recorded since the last step, as {@link Parameters#nextStep} does, without a step: after a pass
     * that calibrates whose gradients are not used. Call {@link Parameters#forgetGradients} next. Of several ranks each calls it. Recipes
     * without scales from earlier steps do nothing.
     *
     * @throws IllegalStateException when they are closed
     */
    public void endCalibration() {
        ensureOpen();
        state.update(null);
    }

    private void update() {
        state.update(parameters.skip());
    }

    /** Discards the amaxes of this step; the next training pass records its weights again. Does nothing when closed. */
    public void forgetStep() {
        if (state.isClosed()) {
            return;
        }
        state.forgetStep();
        forgetWeights();
    }

    /** Lists the state that is needed to go on exactly: scales and histories, if the recipe has them. */
    @Override
    public State state() {
        ensureOpen();
        State.Builder listed = new State.Builder();
        state.list(listed);
        return listed.beforeSharing(this::ensureReduced)
                .afterLoading(this::afterLoading)
                .build();
    }

    /** Checks that ranks which share a state reduce the amaxes of scales from earlier steps. */
    private void ensureReduced() {
        if (recipe() instanceof DelayedScaling && state.reduction() == ownReduction) {
            throw new IllegalStateException(
                    "state: expected scales reduced over all ranks, got those of only this rank; call"
                            + " reduceAmax(quantizers) of the strategy before the first step");
        }
    }

    private void afterLoading() {
        state.afterLoading();
        forgetWeights();
    }

    /** For passes: casts each weight again at its next use, as the capture of a graph needs, since launches follow other steps. */
    public void forgetWeights() {
        weights.forget();
    }

    /** Returns the recipe and how many places it covers. */
    @Override
    public String toString() {
        long covered = Arrays.stream(quantizers).filter(q -> q != null).count();
        return recipe() + " at " + covered + " of " + quantizers.length + " places";
    }

    /** Frees the memory, as closing the parameters does. A second call does nothing. */
    @Override
    public void close() {
        if (state.isClosed()) {
            return;
        }
        Inside.state(scope.stream()).ensureCloses();
        weights.close();
        state.close();
        parameters.forget(update);
        parameters.forget(forgetStep);
        parameters.disown(this);
        scope.close();
    }
}
