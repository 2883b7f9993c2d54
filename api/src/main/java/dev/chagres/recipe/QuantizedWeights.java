package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.recipe.Recipe.Product;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The weights of one model in eight bits: cast whole or, if they are sharded, cast in shards and gathered.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedWeights {
    /** By index of the site; null if no weight is cast there. */
    private final @Nullable WeightCopies[] whole;

    private @Nullable WeightShards parts;

    QuantizedWeights(int places) {
        whole = new WeightCopies[places];
    }

    /** From now on takes the weight of this site from {@code copies}. */
    void add(QuantizerSite site, WeightCopies copies) {
        whole[site.index()] = copies;
    }

    /** Makes each rank cast its shard of these weights from now on. */
    WeightShards shardWeights(
            Quantizers owner, List<WeightShard> given, AllGatherOutputs gathered, AmaxReduction reduction) {
        if (parts != null) {
            throw new IllegalStateException("shardWeights: expected weights that are not sharded yet, got those of "
                    + owner + ", which are; close their WeightShards first");
        }
        WeightShards made = new WeightShards(owner, given, gathered, reduction);
        parts = made;
        return made;
    }

    @Nullable
    WeightShards parts() {
        return parts;
    }

    /** Casts the weights of {@code ended} whole again. */
    void end(WeightShards ended) {
        if (parts == ended) {
            parts = null;
        }
    }

    QuantizedTensor get(
            QuantizerSite site,
            Quantizer quantizer,
            Product product,
            AmaxRecording recording,
            Scope temporary,
            Stream stream) {
        WeightCopies own = own(site);
        WeightShards present = parts;
        return present != null && present.has(site)
                ? present.weight(site, quantizer, product, temporary, stream)
                : own.get(product, recording, temporary, stream);
    }

    /** Returns whether the copies can be compared with what they were cast of: not where ranks gather them, nor without masters. */
    boolean hasSource(QuantizerSite site) {
        return (parts == null || !parts.has(site)) && own(site).hasSource();
    }

    /** Makes ranks record their shards of a weight; returns false if it is cast whole. */
    boolean recordParts(QuantizerSite site) {
        WeightShards present = parts;
        if (present == null || !present.has(site)) {
            return false;
        }
        present.record();
        return true;
    }

    private WeightCopies own(QuantizerSite site) {
        WeightCopies own = whole[site.index()];
        if (own == null) {
            throw new IllegalArgumentException("site: expected that of a weight, got " + site);
        }
        return own;
    }

    /** Casts each weight anew at its next use. */
    void forget() {
        for (WeightCopies weight : whole) {
            if (weight != null) {
                weight.forget();
            }
        }
        if (parts != null) {
            parts.forget();
        }
    }

    void close() {
        if (parts != null) {
            parts.close();
        }
    }

    /** A weight in eight bits, as products read it. */
    sealed interface WeightCopies permits QuantizedWeightCache, Fp8PrimaryWeight {
        /**
         * Returns the weight for {@code product}, ready after the work enqueued on {@code stream}: the matrix and, for the gradient of the
         * input, the transpose.
         */
        QuantizedTensor get(Product product, AmaxRecording recording, Scope temporary, Stream stream);

        /** Casts anew at the next call, if there is something to cast. */
        void forget();

        /** Returns whether there is something that is cast, and so can be compared with the copies. */
        boolean hasSource();
    }
}
