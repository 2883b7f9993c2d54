package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Parameters;
import dev.chagres.model.QuantizerSite;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Transpose;
import java.util.List;

/**
 * For sharding: weights in eight bits of which each rank casts the part that it keeps, once a step, with the scale of the whole weight.
 * Ranks gather the bytes; products read them where they were gathered, and the transpose that a backward product reads is made of them
 * for that product alone.
 *
 * <p>Where scales follow from the weights themselves the largest magnitudes of the parts are reduced over the ranks, those of all
 * weights in one call. Those of {@link DelayedScaling} are known beforehand, and what the parts record is reduced at the end of the step, as {@link
 * Quantizers#reduceAmax} says.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code cast_master_weights_to_fp8}.
 */
public final class WeightParts implements AutoCloseable {
    private static final long NEVER = -1;

    private final Quantizers quantizers;
    private final Parameters parameters;
    private final GatheredWeights gathered;
    private final AmaxReduction reduction;
    private final Scope scope;
    private final PartCasts casts;
    private long step = NEVER;
    private int version;
    private Recording recorded = Recording.OFF;
    private boolean closed;

    WeightParts(Quantizers quantizers, List<WeightPart> parts, GatheredWeights gathered, AmaxReduction reduction) {
        this.quantizers = quantizers;
        this.gathered = Checks.given("gathered", gathered);
        this.reduction = Checks.given("reduction", reduction);
        parameters = quantizers.parameters();
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream);
        try {
            casts = PartCasts.of(quantizers, parts, scope);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns whether ranks gather the weight of this place. */
    boolean has(QuantizerSite site) {
        return casts.has(site);
    }

    /** Returns whether the parts are cast as this step's weights say and, where that is asked for, recorded. */
    public boolean isCast(Recording recording) {
        return !isStale() && (recorded == Recording.ON || recording == Recording.OFF);
    }

    private boolean isStale() {
        return step != parameters.step() || version != parameters.version();
    }

    /**
     * Enqueues the cast of all parts unless {@link #isCast} says that it is done. Each rank calls it, for it may reduce magnitudes.
     *
     * @param stream on which the parts are written, and read when they are gathered
     * @return whether what was gathered before is old
     * @throws IllegalStateException when the quantizers are closed
     */
    public boolean cast(Recording recording, Stream stream) {
        quantizers.ensureOpen();
        if (isCast(Checks.given("recording", recording))) {
            return false;
        }
        boolean stale = isStale();
        casts.cast(recording, reduction, Checks.given("stream", stream));
        step = parameters.step();
        version = parameters.version();
        recorded = recording;
        return stale;
    }

    /** Returns the weight as {@code product} reads it: gathered, or its transpose in memory of {@code temporary}. */
    QuantizedTensor weight(QuantizerSite site, Quantizer quantizer, Product product, Scope temporary, Stream stream) {
        Tensor rows = gathered.gathered(site);
        QuantizedTensor weight = quantizer.empty(temporary, rows.size(0), rows.size(1));
        if (product == Product.FORWARD) {
            return weight.rowwise(rows, casts.scaleInverse(site));
        }
        Tensor columns = temporary.tensor(rows.dtype(), rows.size(1), rows.size(0));
        Transpose.transpose(rows, columns, stream);
        return weight.columnwise(columns, casts.columnwiseScaleInverse(site));
    }

    /** Lets the parts record what this step asks for; nobody gathers them for it. */
    void record() {
        gathered.record();
    }

    /** Casts anew at the next call. */
    void forget() {
        step = NEVER;
    }

    /** Returns the bytes of scales and of memory for casts. */
    public long byteSize() {
        return scope.usedBytes();
    }

    /** Frees the memory; weights are cast whole from now on. A second call does nothing. */
    @Override
    public void close() {
        if (!closed) {
            closed = true;
            quantizers.end(this);
            casts.close();
            scope.close();
        }
    }
}
