package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.SharedMemory;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.parameter.ParameterLayout.Stretch;
import dev.chagres.parameter.ParameterShard.Part;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * The memory of a model's parameters: a vector of weights for each type, and one of gradients, or one for each of two types. Each is
 * whole, or the part that one rank keeps.
 *
 * <p>Threading: the device's thread.
 */
final class ParameterVectors {
    /** The scope that owns the memory of all but the weights. */
    final Scope scope;
    /** The scope that owns the memory of the weights. */
    final Scope weightScope;
    /** The part that is kept here, null where all is. */
    final @Nullable ParameterShard shard;

    private final Map<DType, Tensor> weights = new EnumMap<>(DType.class);
    /** Where the weights of borrowed parameters lie; null for those with memory of their own. */
    private final @Nullable Function<Parameter, Tensor> borrowed;
    /** The same as an array, which is walked without garbage. */
    private final Tensor[] weightVectors;

    /** The gradients of FLOAT32. */
    final Tensor gradients;
    /** These, and behind them those of another type, if there are any. */
    final List<Tensor> gradientVectors;
    /** The issue number of the gradients' memory: another one means that the scope was restarted. */
    private final int issue;

    private int version;
    /** Changes that the launches of the current capture will make. */
    private int capturedChanges;

    /**
     * Allocates zeroed memory.
     *
     * @param weightScope that of the weights
     * @param shard the part that is kept here, null for all
     */
    ParameterVectors(Scope scope, Scope weightScope, ParameterLayout layout, @Nullable ParameterShard shard) {
        this.scope = scope;
        this.weightScope = weightScope;
        this.shard = shard;
        borrowed = null;
        long weightParts = weightParts(shard);
        long gradientParts = shard == null ? 1 : shard.updated().count();
        weightScope.countedAs(MemoryUse.Holder.WEIGHTS);
        layout.weightCounts.forEach((type, count) -> weights.put(type, zeros(weightScope, type, count / weightParts)));
        weightVectors = weights.values().toArray(Tensor[]::new);
        scope.countedAs(MemoryUse.Holder.GRADIENTS);
        gradientVectors = layout.gradientCounts.entrySet().stream()
                .map(one -> zeros(scope, one.getKey(), one.getValue() / gradientParts))
                .toList();
        gradients = gradients(DType.FLOAT32);
        issue = Inside.issue(gradients);
    }

    /** Makes the vectors of parameters whose weights lie in the memory of others, and which have no gradients. */
    ParameterVectors(Scope scope, Function<Parameter, Tensor> borrowed) {
        this.scope = scope;
        this.borrowed = borrowed;
        weightScope = scope;
        shard = null;
        weightVectors = new Tensor[0];
        gradients = zeros(scope, DType.FLOAT32, 0);
        gradientVectors = List.of(gradients);
        issue = Inside.issue(gradients);
    }

    /** Returns how many bytes a scope of the weights hands out. */
    static long weightBytes(ParameterLayout layout, @Nullable ParameterShard shard) {
        long parts = weightParts(shard);
        long bytes = 0;
        for (Map.Entry<DType, Long> one : layout.weightCounts.entrySet()) {
            bytes += CollectiveMemory.byteSizeOf(one.getKey(), one.getValue() / parts);
        }
        return bytes;
    }

    private static long weightParts(@Nullable ParameterShard shard) {
        Part part = shard == null ? null : shard.weights();
        return part == null ? 1 : part.count();
    }

    private static Tensor zeros(Scope scope, DType dtype, long count) {
        Tensor vector = scope.tensor(dtype, count);
        vector.zero(scope.stream());
        return vector;
    }

    /** Returns whether the weights lie in memory of other parameters. */
    boolean isBorrowed() {
        return borrowed != null;
    }

    /** Lets others read the weights. */
    void share(SharedMemory memory) {
        Inside.shareMemory(weightScope, memory);
        for (Tensor vector : weightVectors) {
            Inside.share(vector, memory);
        }
    }

    /** Returns whether nobody may write to the weights, since others may read them. */
    boolean isShared() {
        return borrowed != null || weightVectors.length > 0 && Inside.isShared(weightVectors[0]);
    }

    /** Returns whether all weights lie here, and not one rank's part of them. */
    boolean hasWholeWeights() {
        return shard == null || shard.weights() == null;
    }

    /** Returns the weights of a type, null where no parameter has it. */
    @Nullable
    Tensor weightsOrNull(DType dtype) {
        return weights.get(dtype);
    }

    Tensor weights(DType dtype) {
        return Checks.given("weights", weights.get(dtype));
    }

    private Tensor gradients(DType dtype) {
        return gradientVectors.stream()
                .filter(vector -> vector.dtype() == dtype)
                .findFirst()
                .orElseThrow();
    }

    /** Returns the elements of all gradients that are kept here. */
    long gradientCount() {
        return gradientVectors.stream().mapToLong(Tensor::count).sum();
    }

    /** Returns whether the memory is still that of these vectors: its scope was not restarted. */
    boolean isLive() {
        return !Inside.isTakenBack(gradients, issue);
    }

    /** Returns the stretches of trained parameters that optimizers treat alike, in the order of the gradients. */
    List<ParameterRange> ranges(ParameterLayout layout) {
        List<Stretch> stretches = shard == null ? layout.stretches : ShardRanges.of(layout.groups, shard);
        return stretches.stream()
                .map(s -> new ParameterRange(
                        weights(s.dtype()),
                        s.weight(),
                        scope.view(gradients(s.gradientType()), s.ofType(), s.count()),
                        s.gradient(),
                        s.decay()))
                .toList();
    }

    /** Returns the weight of a parameter. */
    Tensor weight(Parameter parameter, ParameterLayout.Place place) {
        return borrowed != null
                ? borrowed.apply(parameter)
                : scope.view(weights(place.dtype()), place.weight(), parameter.shape());
    }

    /** Returns the gradient of a parameter; null where it has none, or gradients lie in parts on several ranks. */
    @Nullable
    Tensor gradient(Parameter parameter, ParameterLayout.Place place) {
        return shard == null && place.isTrained()
                ? scope.view(gradients(place.gradientType()), place.ofType(), parameter.shape())
                : null;
    }

    long byteSize() {
        return Stream.concat(gradientVectors.stream(), weights.values().stream())
                .mapToLong(Tensor::byteSize)
                .sum();
    }

    /** Records that weights were written, but not by a method of {@link Tensor}. */
    void changed() {
        version++;
    }

    /** Records it for the current capture, until that ends. */
    void changed(Capture capture) {
        if (capturedChanges++ == 0) {
            capture.onRecordedOrFailure(this::forgetCapturedChanges);
        }
    }

    private void forgetCapturedChanges() {
        capturedChanges = 0;
    }

    /** Returns the number of changes of the weights: those that were told, and writes of {@link Tensor}'s methods. */
    int version() {
        int sum = version + capturedChanges;
        for (Tensor vector : weightVectors) {
            sum += Inside.writes(vector);
        }
        return sum;
    }

    /** Returns the number of the latest write by a method of {@link Tensor} to weights of a type among the changes on the device. */
    long writtenAt(@Nullable DType dtype) {
        Tensor vector = dtype == null ? null : weights.get(dtype);
        return vector == null ? 0 : Inside.writtenAt(vector);
    }

    /** Returns whether the graph under way writes weights by a method of {@link Tensor}. */
    boolean isWrittenBy(Capture capture) {
        for (Tensor vector : weightVectors) {
            if (capture.changes(vector)) {
                return true;
            }
        }
        return false;
    }

    /** Counts changes from 0 again: writing the initial weights does not count. */
    void countChanges() {
        version -= version();
    }
}
