package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.Cast;
import java.util.List;

/**
 * Casts shards with the scales from earlier steps, and records their amaxes.
 *
 * <p>Threading: the device's thread.
 */
final class DelayedShardCasts extends ShardCasts {
    private final Tensor[] scaleInverses;
    private final Tensor[] values;
    private final QuantizedTensor[] recording;
    private final QuantizedTensor[] silent;

    DelayedShardCasts(Quantizers quantizers, List<WeightShard> parts, Scope scope) {
        super(quantizers, parts);
        int count = parts.size();
        scaleInverses = apart(scope.tensor(DType.FLOAT32, (long) APART * count), scope);
        values = new Tensor[count];
        recording = new QuantizedTensor[count];
        silent = new QuantizedTensor[count];
        for (int i = 0; i < count; i++) {
            WeightShard part = parts.get(i);
            Quantizer quantizer = quantizers.at(part.site());
            WeightShard cast = part.isEmpty() ? zeros(part, quantizer, scope) : part;
            values[i] = row(cast.values(), scope);
            silent[i] = target(cast, quantizer, scaleInverses[i], scope);
            quantizer.enqueueScale(silent[i], AmaxRecording.OFF);
            recording[i] = silent[i];
            if (!part.isEmpty()) {
                recording[i] = target(cast, quantizer, scaleInverses[i], scope);
                quantizer.enqueueScale(recording[i], AmaxRecording.ON);
            }
        }
    }

    /** The casting kernel writes 1 / scale, which a rank without a shard of the weight needs, too: so it casts some zeros. */
    private static WeightShard zeros(WeightShard part, Quantizer quantizer, Scope scope) {
        Tensor none = scope.tensor(part.site().weight().unreadWeight().dtype(), QuantizerSite.STEP);
        none.zero(scope.stream());
        return new WeightShard(part.site(), 0, none, scope.tensor(quantizer.dtype(), QuantizerSite.STEP));
    }

    @Override
    void cast(AmaxRecording wanted, AmaxReduction reduction, Stream stream) {
        QuantizedTensor[] targets = wanted == AmaxRecording.ON ? recording : silent;
        for (int i = 0; i < targets.length; i++) {
            Cast.quantize(values[i], targets[i], stream);
        }
    }

    @Override
    Tensor scaleInverse(QuantizerSite site) {
        return scaleInverses[number(site)];
    }
}
