package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Rectangle;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.Cast;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Casts one rank's shards of weights with a recipe's scales of the whole weights.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class ShardCasts permits ShardCasts.DelayedShardCasts, ShardCasts.CurrentShardCasts, BlockShardCasts {
    /** Elements from one inverse scale to the next: cuBLASLt reads scales from multiples of 16 bytes. */
    static final int APART = 4;

    final List<WeightShard> parts;
    /** By index of the site: 1 more than the number of its shard. */
    private final int[] numbers;

    ShardCasts(Quantizers quantizers, List<WeightShard> parts) {
        this.parts = List.copyOf(parts);
        numbers = new int[quantizers.parameters().quantizers().size()];
        for (int i = 0; i < parts.size(); i++) {
            numbers[parts.get(i).site().index()] = i + 1;
        }
    }

    static ShardCasts of(Quantizers quantizers, List<WeightShard> parts, Scope scope) {
        return switch (quantizers.recipe()) {
            case DelayedScaling delayed -> new DelayedShardCasts(quantizers, parts, scope);
            case Float8CurrentScaling current ->
                new CurrentShardCasts(quantizers, parts, current.quantizations().weight(), scope);
            case Float8BlockScaling blocks ->
                new BlockShardCasts(quantizers, parts, blocks.quantizations().weight(), scope);
            case MXFP8BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
            case NVFP4BlockScaling refused -> throw new IllegalStateException(refused + " was refused before");
        };
    }

    final boolean has(QuantizerSite site) {
        return numbers[site.index()] > 0;
    }

    final int number(QuantizerSite site) {
        return numbers[site.index()] - 1;
    }

    /** Returns a part as a matrix of one row, which casts take. */
    static Tensor row(@Nullable Tensor part, Scope scope) {
        Tensor present = Checks.given("part", part);
        return scope.view(present, 0, 1, present.count());
    }

    /** Returns a number for each weight, {@value #APART} elements apart in {@code numbers}. */
    final Tensor[] apart(Tensor numbers, Scope scope) {
        Tensor[] each = new Tensor[Math.toIntExact(numbers.count() / APART)];
        for (int i = 0; i < each.length; i++) {
            each[i] = scope.view(numbers, (long) APART * i, 1);
        }
        return each;
    }

    /** Returns the output of the cast of a shard with one scale for the whole weight. */
    static QuantizedTensor target(WeightShard part, Quantizer quantizer, Tensor scaleInverse, Scope scope) {
        return quantizer.empty(scope, 1, part.presentBytes().count()).rowwise(row(part.bytes(), scope), scaleInverse);
    }

    /** Allocates a vector of one FP32 number for each shard. */
    Tensor numbers(Scope scope) {
        return scope.tensor(DType.FLOAT32, Math.max(1, parts.size()));
    }

    /** Enqueues the casts. */
    abstract void cast(AmaxRecording recording, AmaxReduction reduction, Stream stream);

    /** Returns the scale inverses of a weight's rowwise data. */
    abstract Tensor scaleInverse(QuantizerSite site);

    /** Returns the scale inverses of its columnwise data. */
    Tensor columnwiseScaleInverse(QuantizerSite site) {
        return scaleInverse(site);
    }

    /** Frees what no scope owns. */
    void close() {}

    /** Casts shards with the scales from earlier steps, and records their amaxes. */
    private static final class DelayedShardCasts extends ShardCasts {
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

    /** Casts shards with the amaxes of the whole weights, over all ranks' shards. */
    private static final class CurrentShardCasts extends ShardCasts {
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
                    measured.add(
                            target(part, quantizer, scaleInverses[i], scope).amax(scope.view(amaxes, i, 1)));
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
}
