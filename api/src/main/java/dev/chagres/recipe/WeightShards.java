package dev.chagres.recipe;

import dev.chagres.MemoryUse;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Transpose;
import java.util.List;

/**
 * For sharding: weights in eight bits of which each rank casts the part that it keeps, once a step, with the scale of the whole weight.
 * Ranks gather the bytes, and products read the gathered bytes. The transpose that a backward product reads is made from them for that
 * product alone.
 *
 * <p>If scales follow from the weights themselves, the amaxes of the parts are reduced over the ranks, for all weights in one call. Scales
 * of {@link DelayedScaling} are known beforehand, and the amaxes of the parts are reduced at the end of the step: see {@link
 * Quantizers#reduceAmax}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code cast_master_weights_to_fp8}.
 */
public final class WeightShards implements AutoCloseable {
    private static final long NEVER = -1;

    private final Quantizers quantizers;
    private final Parameters parameters;
    private final AllGatherOutputs gathered;
    private final AmaxReduction reduction;
    private final Scope scope;
    private final ShardCasts casts;
    private long step = NEVER;
    private int version;
    private AmaxRecording recorded = AmaxRecording.OFF;
    private boolean closed;

    WeightShards(Quantizers quantizers, List<WeightShard> parts, AllGatherOutputs gathered, AmaxReduction reduction) {
        this.quantizers = quantizers;
        this.gathered = Checks.given("gathered", gathered);
        this.reduction = Checks.given("reduction", reduction);
        parameters = quantizers.parameters();
        Stream stream = parameters.scope().stream();
        scope = stream.device().openScope(stream).countedAs(MemoryUse.Holder.COLLECTIVES);
        try {
            casts = ShardCasts.of(quantizers, parts, scope);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns whether ranks gather the weight of this place. */
    boolean has(QuantizerSite site) {
        return casts.has(site);
    }

    /** Returns whether the parts have been cast with this step's weights and, if asked for, recorded. */
    public boolean isCast(AmaxRecording recording) {
        return !isStale() && (recorded == AmaxRecording.ON || recording == AmaxRecording.OFF);
    }

    private boolean isStale() {
        return step != parameters.step() || version != parameters.version();
    }

    /**
     * Enqueues the cast of all parts unless {@link #isCast}. Each rank must call it, since it may reduce amaxes over ranks.
     *
     * @param stream on which the parts are written, and read by the gather
     * @return whether weights that were gathered before are outdated
     * @throws IllegalStateException when the quantizers are closed
     */
    public boolean cast(AmaxRecording recording, Stream stream) {
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

    /** Lets the parts record for this step, without a gather. */
    void record() {
        gathered.record();
    }

    /** Makes the next call cast again. */
    void forget() {
        step = NEVER;
    }

    /** Returns the bytes of scales and of memory for casts. */
    public long byteSize() {
        return scope.usedBytes();
    }

    /** Frees the memory; whole weights are cast from now on. A second call does nothing. */
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
