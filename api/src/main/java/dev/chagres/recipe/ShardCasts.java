package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.QuantizerSite;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Casts one rank's shards of weights with a recipe's scales of the whole weights.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class ShardCasts permits DelayedShardCasts, CurrentShardCasts, BlockShardCasts {
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
}
