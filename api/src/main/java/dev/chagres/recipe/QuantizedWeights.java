package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.model.QuantizerSite;
import dev.chagres.recipe.Recipe.Product;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The weights of one model in eight bits: whole here or, where ranks have a part each, cast in parts and gathered.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedWeights {
    /** By the number of the place; null where no weight is cast. */
    private final @Nullable WeightCopies[] whole;

    private @Nullable WeightParts parts;

    QuantizedWeights(int places) {
        whole = new WeightCopies[places];
    }

    /** Takes the weight of this place from {@code copies} from now on. */
    void add(QuantizerSite site, WeightCopies copies) {
        whole[site.index()] = copies;
    }

    /** Makes each rank cast its shard of these weights from now on. */
    WeightParts shardWeights(
            Quantizers owner, List<WeightPart> given, GatheredWeights gathered, AmaxReduction reduction) {
        if (parts != null) {
            throw new IllegalStateException("shardWeights: expected weights that are not sharded yet, got those of "
                    + owner + ", which are; close their WeightParts first");
        }
        WeightParts made = new WeightParts(owner, given, gathered, reduction);
        parts = made;
        return made;
    }

    @Nullable
    WeightParts parts() {
        return parts;
    }

    /** Casts whole what {@code ended} has cast in parts. */
    void end(WeightParts ended) {
        if (parts == ended) {
            parts = null;
        }
    }

    QuantizedTensor get(
            QuantizerSite site,
            Quantizer quantizer,
            Product product,
            Recording recording,
            Scope temporary,
            Stream stream) {
        WeightCopies own = own(site);
        WeightParts present = parts;
        return present != null && present.has(site)
                ? present.weight(site, quantizer, product, temporary, stream)
                : own.get(product, recording, temporary, stream);
    }

    /** Returns whether the copies can be compared with what they were cast of: not where ranks gather them, nor without masters. */
    boolean hasSource(QuantizerSite site) {
        return (parts == null || !parts.has(site)) && own(site).hasSource();
    }

    /** Lets ranks record the parts that they have of a weight; returns false where it is cast whole. */
    boolean recordParts(QuantizerSite site) {
        WeightParts present = parts;
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

    /** Casts each weight anew when it is asked for next. */
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
}
