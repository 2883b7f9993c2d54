package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Rectangle;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.Cast;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.List;

/**
 * Casts shards with the amaxes of the whole weights, over all ranks' shards.
 *
 * <p>Threading: the device's thread.
 */
final class CurrentShardCasts extends ShardCasts {
    private final QuantizationConfig config;
    private final DType dtype;
    private final Tensor amaxes;
    private final List<Tensor> reduced;
    /** As they are computed, and as products read them. */
    private final Tensor inverses;

    private final Tensor inversesApart;
    private final Tensor[] scaleInverses;
    private final TensorLists scales;
    private final List<Tensor> values = new ArrayList<>();
    /** With a place for the largest magnitude. */
    private final List<QuantizedTensor> measured = new ArrayList<>();
    /** With the scale. */
    private final List<QuantizedTensor> scaled = new ArrayList<>();

    CurrentShardCasts(Quantizers quantizers, List<WeightShard> parts, QuantizationConfig config, Scope scope) {
        super(quantizers, parts);
        this.config = config;
        dtype = quantizers.recipe().format().forward();
        amaxes = numbers(scope);
        reduced = List.of(amaxes);
        Tensor found = numbers(scope);
        inverses = numbers(scope);
        inversesApart = scope.tensor(DType.FLOAT32, (long) APART * parts.size());
        inversesApart.zero(scope.stream());
        scaleInverses = apart(inversesApart, scope);
        for (int i = 0; i < scaleInverses.length; i++) {
            WeightShard part = parts.get(i);
            if (!part.isEmpty()) {
                Quantizer quantizer = quantizers.at(part.site());
                values.add(row(part.values(), scope));
                measured.add(target(part, quantizer, scaleInverses[i], scope).amax(scope.view(amaxes, i, 1)));
                scaled.add(target(part, quantizer, scaleInverses[i], scope).scale(scope.view(found, i, 1)));
            }
        }
        scales = TensorLists.of(new Tensor[] {amaxes}, new Tensor[] {found}, new Tensor[] {inverses});
    }

    @Override
    void cast(AmaxRecording recording, AmaxReduction reduction, Stream stream) {
        amaxes.zero(stream);
        for (int i = 0; i < values.size(); i++) {
            RecipeUpdates.computeAmax(values.get(i), measured.get(i), config, stream);
        }
        reduction.max(reduced);
        MultiTensor.computeScaleAndScaleInverse(scales, dtype, config, stream);
        long count = parts.size();
        inversesApart.copyFrom(stream, new Rectangle(0, count, 1, APART), inverses, new Rectangle(0, count, 1, 1));
        for (int i = 0; i < values.size(); i++) {
            Cast.quantize(values.get(i), scaled.get(i), stream);
        }
    }

    @Override
    Tensor scaleInverse(QuantizerSite site) {
        return scaleInverses[number(site)];
    }

    @Override
    void close() {
        scales.close();
    }
}
