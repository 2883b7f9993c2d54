package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.PartialCast;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.TensorLists;
import dev.chagres.te.Transpose;
import java.util.ArrayList;
import java.util.List;

/**
 * Casts shards with the scales of whole blocks of 128 x 128: if a shard ends inside a block, another rank has the rest of it.
 *
 * <p>A weight of A x B blocks has A rows of numbers, B in each; both are filled up to multiples of 4, which is what scales come in, so
 * that one transpose makes those of the other copy.
 *
 * <p>Threading: the device's thread.
 */
final class BlockShardCasts extends ShardCasts {
    private static final long MULTIPLE = 4;

    /** One weight: the amaxes and scales of its blocks, and the cast of this rank's shard, if there is one. */
    private record Weight(WeightShard part, Tensor amaxes, Tensor scales, Tensor inverses, Tensor transposed) {
        private long height() {
            return part.site().weight().shape().size(0);
        }

        private long width() {
            return part.site().weight().shape().size(1);
        }

        private Tensor rowwise(Scope scope) {
            return scope.view(inverses, 0, blocks(height()), inverses.size(1));
        }

        private Tensor columnwise(Scope scope) {
            return scope.view(transposed, 0, blocks(width()), transposed.size(1));
        }
    }

    /** Where a shard is cast: in place if it has whole rows of blocks, else in {@code around}, from where it is copied. */
    private record Place(Weight weight, Tensor around, Tensor output) {
        private boolean isCopied() {
            return weight.part.bytes() != output;
        }
    }

    private final QuantizationConfig config;
    private final DType dtype;
    private final Tensor amaxes;
    private final List<Tensor> reduced;
    private final TensorLists scales;
    private final List<Weight> weights = new ArrayList<>();
    private final List<Place> places = new ArrayList<>();
    private final Tensor[] rowwise;
    private final Tensor[] columnwise;

    BlockShardCasts(Quantizers quantizers, List<WeightShard> parts, QuantizationConfig config, Scope scope) {
        super(quantizers, parts);
        this.config = config;
        dtype = quantizers.recipe().format().forward();
        long numbers = parts.stream().mapToLong(BlockShardCasts::numbers).sum();
        amaxes = scope.tensor(DType.FLOAT32, Math.max(1, numbers));
        reduced = List.of(amaxes);
        Tensor found = scope.tensor(DType.FLOAT32, amaxes.count());
        Tensor inverses = scope.tensor(DType.FLOAT32, amaxes.count());
        Tensor transposed = scope.tensor(DType.FLOAT32, amaxes.count());
        rowwise = new Tensor[parts.size()];
        columnwise = new Tensor[parts.size()];
        long offset = 0;
        for (int i = 0; i < rowwise.length; i++) {
            long down = filled(parts.get(i).site().weight().shape().size(0));
            long across = filled(parts.get(i).site().weight().shape().size(1));
            Weight weight = new Weight(
                    parts.get(i),
                    scope.view(amaxes, offset, down, across),
                    scope.view(found, offset, down, across),
                    scope.view(inverses, offset, down, across),
                    scope.view(transposed, offset, across, down));
            weights.add(weight);
            rowwise[i] = weight.rowwise(scope);
            columnwise[i] = weight.columnwise(scope);
            offset += down * across;
        }
        placeParts(scope);
        scales = TensorLists.of(new Tensor[] {amaxes}, new Tensor[] {found}, new Tensor[] {inverses});
    }

    private static long blocks(long elements) {
        return (elements + Scaling.BLOCK - 1) / Scaling.BLOCK;
    }

    private static long filled(long elements) {
        return (blocks(elements) + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
    }

    private static long numbers(WeightShard part) {
        return filled(part.site().weight().shape().size(0))
                * filled(part.site().weight().shape().size(1));
    }

    /** The memory in which one shard after another is cast if it needs room around it. */
    private void placeParts(Scope scope) {
        long most = 0;
        for (Weight weight : weights) {
            if (!weight.part.isEmpty()
                    && room(weight) > weight.part.presentBytes().count()) {
                most = Math.max(most, room(weight));
            }
        }
        Tensor room = scope.tensor(dtype, Math.max(1, most));
        for (Weight weight : weights) {
            if (!weight.part.isEmpty()) {
                Tensor bytes = weight.part.presentBytes();
                long first = PartialCast.firstWritten(weight.width(), weight.part.begin());
                places.add(
                        room(weight) == bytes.count()
                                ? new Place(weight, bytes, bytes)
                                : new Place(
                                        weight,
                                        scope.view(room, 0, room(weight)),
                                        scope.view(room, weight.part.begin() - first, bytes.count())));
            }
        }
    }

    private static long room(Weight weight) {
        WeightShard part = weight.part;
        long end = part.begin() + part.presentBytes().count();
        return PartialCast.endWritten(weight.height(), weight.width(), end)
                - PartialCast.firstWritten(weight.width(), part.begin());
    }

    @Override
    void cast(AmaxRecording recording, AmaxReduction reduction, Stream stream) {
        amaxes.zero(stream);
        for (int i = 0; i < places.size(); i++) {
            Weight weight = places.get(i).weight;
            WeightShard part = weight.part;
            PartialCast.computePartialAmax(
                    part.presentValues(), weight.amaxes, weight.height(), weight.width(), part.begin(), stream);
        }
        reduction.max(reduced);
        MultiTensor.computeScaleAndScaleInverse(scales, dtype, config, stream);
        for (int i = 0; i < weights.size(); i++) {
            Transpose.transpose(weights.get(i).inverses, weights.get(i).transposed, stream);
        }
        for (int i = 0; i < places.size(); i++) {
            cast(places.get(i), stream);
        }
    }

    private static void cast(Place place, Stream stream) {
        Weight weight = place.weight;
        WeightShard part = weight.part;
        PartialCast.partialCast(
                part.presentValues(),
                place.output,
                place.around,
                weight.scales,
                weight.height(),
                weight.width(),
                part.begin(),
                stream);
        if (place.isCopied()) {
            part.presentBytes().copyFrom(stream, place.output);
        }
    }

    @Override
    Tensor scaleInverse(QuantizerSite site) {
        return rowwise[number(site)];
    }

    @Override
    Tensor columnwiseScaleInverse(QuantizerSite site) {
        return columnwise[number(site)];
    }

    @Override
    void close() {
        scales.close();
    }
}
