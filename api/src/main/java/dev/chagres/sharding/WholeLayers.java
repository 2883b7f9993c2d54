package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Rows;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.Arrays;
import java.util.function.BiConsumer;
import org.jspecify.annotations.Nullable;

/**
 * Gathers the tensors of split layers to those of the whole model.
 *
 * <p>Threading: the device's thread.
 */
public final class WholeLayers {
    private final TensorParallel ranks;
    private final Stream stream;
    private final Parameters parameters;

    private WholeLayers(Parameters parameters) {
        this.parameters = parameters;
        ranks = parameters.tensorParallel();
        stream = parameters.scope().stream();
    }

    /**
     * Passes each tensor of {@code state}, gathered to that of the whole model, to {@code sink}, one after another, with the names and
     * shapes of a model that is not split. Each rank calls it, with the same state.
     *
     * {@snippet file="dev/chagres/sharding/RankedRun.java" region="gather"}
     *
     * @param parameters of layers that are split or not
     * @param state of the parameters, with or without that of their optimizer
     * @param sink called with each tensor on every rank; the tensor is valid until it returns
     * @throws IllegalArgumentException when the state has tensors of a split parameter in another type than FLOAT32, BFLOAT16, FLOAT16,
     *     or pairs of bytes, which an optimizer's remainders are
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static void gather(Parameters parameters, State state, BiConsumer<String, Tensor> sink) {
        Checks.given("sink", sink);
        WholeLayers gathering = new WholeLayers(Checks.given("parameters", parameters));
        Checks.given("state", state).ensureNoneQuantized();
        state.tensors().forEach((name, tensor) -> gathering.handOut(name, tensor, sink));
    }

    private void handOut(String name, Tensor tensor, BiConsumer<String, Tensor> sink) {
        ParameterSplit split = splitOf(name, tensor);
        if (split == null) {
            sink.accept(name, tensor);
            return;
        }
        boolean pairs = isPairs(tensor);
        if (!pairs && !tensor.dtype().isFloat()) {
            throw new IllegalArgumentException("state: expected parts of FLOAT32, BFLOAT16 or FLOAT16, or pairs of"
                    + " bytes, got " + tensor + " called " + name);
        }
        try (Scope room = stream.device().openScope(stream)) {
            sink.accept(name, pairs ? wholePairs(tensor, split, room) : whole(tensor, split, room));
        }
    }

    /** Returns the split of a tensor with this name, which is that of the parameter that the name begins with; null if it is not split. */
    private @Nullable ParameterSplit splitOf(String name, Tensor tensor) {
        for (Parameter parameter : parameters.all()) {
            boolean named = name.equals(parameter.name()) || name.startsWith(parameter.name() + ".");
            long elements = isPairs(tensor) ? tensor.size(0) : tensor.count();
            if (named && elements == parameter.shape().count()) {
                return parameter.split();
            }
        }
        return null;
    }

    /** Returns whether {@code tensor} has two bytes an element. */
    private static boolean isPairs(Tensor tensor) {
        return tensor.dtype() == DType.BYTE && tensor.rank() == 2 && tensor.size(1) == 2;
    }

    /** Gathers pairs of bytes as 16-bit numbers; nothing computes with them. */
    private Tensor wholePairs(Tensor part, ParameterSplit split, Scope room) {
        Tensor whole = whole(room.reinterpret(part, DType.BFLOAT16, 0, part.size(0)), split, room);
        Tensor bytes = room.reinterpret(whole, DType.BYTE, 0, whole.byteSize());
        return room.view(bytes, 0, whole.count(), 2);
    }

    private Tensor whole(Tensor part, ParameterSplit split, Scope room) {
        long most = split.of(0).shape().count();
        Tensor parts = room.tensor(part.dtype(), most * ranks.size());
        ranks.group().allGather(filled(part, most, room), parts, stream);
        long run = split.run();
        long runs = parts.count() / run;
        Tensor index = room.tensor(DType.INT32, runs);
        index.set(stream, places(split, run, Math.toIntExact(runs)));
        Tensor whole = room.tensor(part.dtype(), split.whole().count() / run, run);
        Rows.scatterRows(room.view(parts, 0, runs, run), index, whole, stream);
        return room.view(whole, 0, split.whole());
    }

    /** Returns the part padded to the length of the longest one; the padding is not read. */
    private Tensor filled(Tensor part, long most, Scope room) {
        if (part.count() == most) {
            return part;
        }
        Tensor filled = room.tensor(part.dtype(), most);
        filled.zero(stream);
        room.view(filled, 0, part.count()).copyFrom(stream, room.view(part, 0, part.count()));
        return filled;
    }

    /** Returns where in the whole tensor the runs of all ranks' parts lie; -1 for runs of padding. */
    private static int[] places(ParameterSplit split, long run, int runs) {
        int[] places = new int[runs];
        Arrays.fill(places, -1);
        int each = runs / split.ranks();
        for (int rank = 0; rank < split.ranks(); rank++) {
            ParameterSplit of = split.of(rank);
            long own = of.shape().count() / run;
            for (int i = 0; i < own; i++) {
                places[rank * each + i] = Math.toIntExact(of.element(i * run) / run);
            }
        }
        return places;
    }
}
