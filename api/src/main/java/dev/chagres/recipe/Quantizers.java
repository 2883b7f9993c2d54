package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.model.Parameters;
import dev.chagres.model.QuantizerSite;
import dev.chagres.model.QuantizerSite.Role;
import dev.chagres.model.State;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * What a recipe keeps for the parameters of one model: scales and their history, and the eight-bit copies of the weights.
 *
 * <p>What is named {@value #HEAD} stays in the model's type unless {@link #allocate(Parameters, Recipe, Set)} says otherwise.
 * Weights are cast once a step, however many passes use them. Scales change once a step, in {@link Parameters#nextStep}, which
 * optimizers call; evaluation changes nothing here.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code FP8GlobalStateManager}.
 */
public final class Quantizers implements AutoCloseable {
    /** The part of a name that stays in the model's type unless told otherwise. */
    public static final String HEAD = "head";

    private final Parameters parameters;
    private final Recipe recipe;
    private final List<QuantizerSite> sites;
    private final Scope scope;
    /** By the number of the place; null where the place keeps the model's type. */
    private final @Nullable Quantizer[] quantizers;
    /** By the number of the place; null where no weight is cast. */
    private final @Nullable CachedWeight[] weights;

    private @Nullable CastMeasurements measurements;
    private int measuredSteps;
    private boolean closed;
    private @Nullable DelayedScales forward;
    private @Nullable DelayedScales backward;
    private final Runnable update = this::update;
    private final Runnable forgetStep = this::forgetStep;

    private Quantizers(Parameters parameters, Recipe recipe, List<QuantizerSite> covered) {
        this.parameters = parameters;
        this.recipe = recipe;
        sites = parameters.quantizers();
        quantizers = new Quantizer[sites.size()];
        weights = new CachedWeight[sites.size()];
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream);
        try {
            if (recipe instanceof DelayedScaling delayed) {
                long gradients = covered.stream()
                        .filter(site -> site.role() == Role.GRADIENT)
                        .count();
                forward = new DelayedScales(
                        delayed, recipe.format().forward(), Math.toIntExact(covered.size() - gradients), scope);
                backward = new DelayedScales(delayed, recipe.format().backward(), Math.toIntExact(gradients), scope);
            }
            for (QuantizerSite site : covered) {
                Quantizer quantizer = make(site);
                quantizers[site.index()] = quantizer;
                if (site.role() == Role.WEIGHT) {
                    weights[site.index()] = new CachedWeight(quantizer, site.weight(), scope);
                }
            }
        } catch (RuntimeException | Error failure) {
            closeScales();
            scope.close();
            throw failure;
        }
        parameters.atNextStep(update);
        parameters.atForgetting(forgetStep);
        parameters.adopt(this);
    }

    /**
     * Takes memory for the recipe's state and the eight-bit weights, for every place whose name has no part {@value #HEAD}.
     *
     * @throws IllegalArgumentException when the device cannot compute the recipe, or no place is left
     */
    public static Quantizers allocate(Parameters parameters, Recipe recipe) {
        return allocate(
                parameters, recipe, site -> !Set.of(site.name().split("\\.")).contains(HEAD));
    }

    /**
     * Takes memory for the recipe's state and the eight-bit weights, for every place but those of some groups.
     *
     * @param highPrecision groups of the plan whose products stay in the model's type; the head is cast unless its group is
     *     among them
     * @throws IllegalArgumentException when the device cannot compute the recipe, a group has no product, or no place is left
     */
    public static Quantizers allocate(Parameters parameters, Recipe recipe, Set<String> highPrecision) {
        Set<String> groups = new TreeSet<>();
        Checks.given("parameters", parameters).quantizers().forEach(site -> groups.add(site.group()));
        for (String name : Checks.given("highPrecision", highPrecision)) {
            if (!groups.contains(Checks.given("highPrecision", name))) {
                throw new IllegalArgumentException(
                        "highPrecision: expected groups that have a product, " + groups + ", got " + name);
            }
        }
        Set<String> kept = Set.copyOf(highPrecision);
        return allocate(parameters, recipe, site -> !kept.contains(site.group()));
    }

    private static Quantizers allocate(Parameters parameters, Recipe recipe, Predicate<QuantizerSite> covers) {
        return new Quantizers(parameters, recipe, CoveredSites.of(parameters, recipe, covers));
    }

    private Quantizer make(QuantizerSite site) {
        Role role = site.role();
        return switch (recipe) {
            case DelayedScaling delayed ->
                Checks.given("scales", role == Role.GRADIENT ? backward : forward)
                        .next(site);
            case Float8CurrentScaling current -> new CurrentQuantizer(type(role), current.config(role));
            case Float8BlockScaling blocks ->
                new BlockQuantizer(
                        role == Role.WEIGHT ? Scaling.BLOCK_2D : Scaling.BLOCK_1D, type(role), blocks.config(role));
            case MXFP8BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
            case NVFP4BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
        };
    }

    private DType type(Role role) {
        return role == Role.GRADIENT
                ? recipe.format().backward()
                : recipe.format().forward();
    }

    /** Returns the recipe. */
    public Recipe recipe() {
        return recipe;
    }

    /** Returns the parameters whose products these are. */
    public Parameters parameters() {
        return parameters;
    }

    /** Returns whether tensors at {@code site} are cast. */
    public boolean covers(QuantizerSite site) {
        int index = Checks.given("site", site).index();
        return index < quantizers.length && sites.get(index) == site && quantizers[index] != null;
    }

    /** Returns the bytes of the state and the eight-bit weights. */
    public long byteSize() {
        return scope.usedBytes();
    }

    /**
     * For authors of layers: enqueues the cast of {@code x}.
     *
     * @param x [rows, columns]
     * @param copies an empty quantized tensor with the copies that are wanted, from {@link #empty}; with the largest magnitude of
     *     x as its amax where that is known and {@link #scalesByAmax} is true
     * @throws IllegalArgumentException when the place is not covered
     */
    public void cast(
            QuantizerSite site, Tensor x, QuantizedTensor copies, Recording recording, Scope temporary, Stream stream) {
        Quantizer quantizer = of(site, copies);
        Checks.given("recording", recording);
        Checks.given("temporary", temporary);
        quantizer.cast(x, copies, null, recording, temporary, stream);
        if (measures(recording)) {
            measure(site, x, copies, stream);
        }
    }

    /**
     * For authors of layers: enqueues the cast of {@code x} to both copies, and {@code columnSums[c] = sum over r of x[r, c]}, by
     * one kernel: what a product needs of the gradient of its output, and the gradient of its bias.
     *
     * @param x [rows, columns], rows a multiple of 8, columns of 4
     * @param copies a quantized tensor with both copies, from {@link #empty}; its amax as for {@link #cast}
     * @param columnSums [columns], in the type of x
     * @throws IllegalArgumentException when the place is not covered, or scales blocks
     */
    public void castAndSumColumns(
            QuantizerSite site,
            Tensor x,
            QuantizedTensor copies,
            Tensor columnSums,
            Recording recording,
            Scope temporary,
            Stream stream) {
        Quantizer quantizer = of(site, copies);
        Checks.given("recording", recording);
        Checks.given("temporary", temporary);
        if (quantizer.scaling() != Scaling.TENSOR) {
            throw new IllegalArgumentException("site: expected one scale a tensor, for no kernel sums columns beside"
                    + " blocks, got " + site + " of " + recipe + "; call cast");
        }
        quantizer.cast(x, copies, Checks.given("columnSums", columnSums), recording, temporary, stream);
        if (measures(recording)) {
            measure(site, x, copies, stream);
        }
    }

    /**
     * For authors of layers: returns whether the scale is known before the tensor is, so that the kernel which computes the
     * tensor can cast it, too.
     *
     * @throws IllegalArgumentException when the place is not covered
     */
    public boolean knowsScale(QuantizerSite site) {
        return of(site).knowsScale();
    }

    /**
     * For authors of layers: gives {@code copies} the scale and, where that is recorded, the place for the largest magnitude; a
     * kernel fills the copies then.
     *
     * @param copies a quantized tensor from {@link #empty}
     * @throws IllegalArgumentException when the place is not covered, or its scale is not known before the tensor is
     */
    public void setScale(QuantizerSite site, QuantizedTensor copies, Recording recording) {
        Quantizer quantizer = of(site, copies);
        if (!quantizer.knowsScale()) {
            throw new IllegalArgumentException("site: expected a scale that is known before the tensor is, got " + site
                    + " of " + recipe + "; call cast");
        }
        quantizer.setScale(copies, Checks.given("recording", recording));
    }

    /**
     * For authors of layers: returns whether the scale follows from the largest magnitude of the tensor. A kernel that computes
     * the tensor may find it, too: {@link #cast} takes it as the amax of its {@code copies}.
     *
     * @throws IllegalArgumentException when the place is not covered
     */
    public boolean scalesByAmax(QuantizerSite site) {
        return of(site).scalesByAmax();
    }

    private Quantizer of(QuantizerSite site, QuantizedTensor copies) {
        Quantizer quantizer = of(site);
        if (Checks.given("copies", copies).scaling() != quantizer.scaling() || copies.dtype() != quantizer.dtype()) {
            throw new IllegalArgumentException("copies: expected " + quantizer.dtype() + " scaled by "
                    + quantizer.scaling() + " at " + site + ", got " + copies);
        }
        return quantizer;
    }

    /**
     * For authors of layers: returns how many elements share a scale.
     *
     * @throws IllegalArgumentException when the place is not covered
     */
    public Scaling scaling(QuantizerSite site) {
        return of(site).scaling();
    }

    /**
     * For authors of layers: hands out a quantized tensor of the place's type, without copies.
     *
     * @throws IllegalArgumentException when the place is not covered
     */
    public QuantizedTensor empty(QuantizerSite site, Scope from, long rows, long columns) {
        return of(site).empty(Checks.given("from", from), rows, columns);
    }

    /**
     * For authors of layers: returns the weight in eight bits, cast now if no pass of this step has done so.
     *
     * @throws IllegalArgumentException when the place is not covered, or is none of a weight
     */
    public QuantizedTensor weight(QuantizerSite site, Recording recording, Scope temporary, Stream stream) {
        of(site);
        CachedWeight weight = weights[site.index()];
        if (weight == null) {
            throw new IllegalArgumentException("site: expected that of a weight, got " + site);
        }
        QuantizedTensor copies =
                weight.get(Checks.given("recording", recording), Checks.given("temporary", temporary), stream);
        if (measures(recording)) {
            measure(site, site.weight().weight(), copies, stream);
        }
        return copies;
    }

    /**
     * Measures the casts of every {@code steps}th step of training from now on, those of steps whose number divides by it; 0 ends
     * that. A measured cast is read once more, with what it was made of; a kernel that casts what it computes writes that in the
     * model's type, too, or computes it twice. The numbers that training computes are the same. What a graph replays is not
     * measured.
     *
     * @param steps 0 or more
     * @throws IllegalArgumentException when steps is negative
     * @throws IllegalStateException when they are closed
     */
    public void measureEvery(int steps) {
        ensureOpen();
        if (steps < 0) {
            throw new IllegalArgumentException("steps: expected 0 or more, got " + steps);
        }
        if (steps > 0 && measurements == null) {
            measurements = new CastMeasurements(sites.size(), scope);
        }
        measuredSteps = steps;
    }

    /**
     * Returns what was measured last at each place, in the order of the plan; empty where nothing was. Waits for the stream.
     *
     * @throws IllegalStateException when they are closed
     */
    public List<CastStatistics> statistics() {
        ensureOpen();
        return measurements == null ? List.of() : measurements.read(sites, scope.stream());
    }

    /** For authors of layers: returns whether casts of this step are measured. */
    public boolean measures(Recording recording) {
        return measuredSteps != 0
                && recording == Recording.ON
                && parameters.step() % measuredSteps == 0
                && Inside.capture(scope.stream()) == null;
    }

    /**
     * For authors of layers, where a kernel casts what it computes: enqueues the measurement of the cast, where {@link #measures}
     * says so.
     *
     * @param x [rows, columns], what the copies were made of, rounded to 16 bits
     * @param copies with rowwise data, of the shape of x
     * @throws IllegalArgumentException when the place is not covered, or shapes, types or devices do not fit
     * @throws IllegalStateException when {@link #measureEvery} was never called
     */
    public void measure(QuantizerSite site, Tensor x, QuantizedTensor copies, Stream stream) {
        of(site, copies);
        if (measurements == null) {
            throw new IllegalStateException("measure: expected measureEvery before, which takes the memory");
        }
        measurements.measure(site, x, copies, parameters.step(), stream);
    }

    private Quantizer of(QuantizerSite site) {
        ensureOpen();
        Quantizer quantizer = covers(site) ? quantizers[site.index()] : null;
        if (quantizer == null) {
            throw new IllegalArgumentException(
                    "site: expected one that the recipe covers, got " + site + " of group " + site.group());
        }
        return quantizer;
    }

    /** Returns whether nobody has closed them. */
    public boolean isOpen() {
        return !closed;
    }

    /**
     * Checks that nobody has closed them.
     *
     * @throws IllegalStateException when they are closed
     */
    public void ensureOpen() {
        if (closed) {
            throw new IllegalStateException(
                    "the quantizers of the pass are closed, by themselves or with their parameters;"
                            + " call pass.noAutocast, or pass.autocast with others");
        }
    }

    private void update() {
        Stream stream = scope.stream();
        if (forward != null) {
            forward.update(stream);
        }
        if (backward != null) {
            backward.update(stream);
        }
    }

    /** Forgets what this step has recorded; the next training pass records its weights again. Does nothing when closed. */
    public void forgetStep() {
        if (closed) {
            return;
        }
        Stream stream = scope.stream();
        if (forward != null) {
            forward.forgetStep(stream);
        }
        if (backward != null) {
            backward.forgetStep(stream);
        }
        forgetWeights();
    }

    /** Lists what must be saved to go on exactly: scales and histories where the recipe has them. */
    public State state() {
        ensureOpen();
        State.Builder state = new State.Builder();
        if (forward != null) {
            forward.list("forward", state);
        }
        if (backward != null) {
            backward.list("backward", state);
        }
        return state.afterLoading(this::forgetWeights).build();
    }

    /** For passes: casts each weight again when it is asked for next, as a graph must that will run after other steps. */
    public void forgetWeights() {
        for (CachedWeight weight : weights) {
            if (weight != null) {
                weight.forget();
            }
        }
    }

    /** Returns the recipe and how many places it covers. */
    @Override
    public String toString() {
        long covered = Arrays.stream(quantizers).filter(q -> q != null).count();
        return recipe + " at " + covered + " of " + quantizers.length + " places";
    }

    /** Frees the memory, as closing the parameters does. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        DeviceState device = Inside.state(scope.stream());
        if (!device.isClosed()) {
            device.ensureCurrent();
        }
        closed = true;
        parameters.forget(update);
        parameters.forget(forgetStep);
        parameters.disown(this);
        closeScales();
        scope.close();
    }

    private void closeScales() {
        for (DelayedScales scales : new DelayedScales[] {forward, backward}) {
            if (scales != null) {
                scales.close();
            }
        }
    }
}
