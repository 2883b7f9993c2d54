package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Opened;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.parameter.FlatParameter;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.recipe.AllGatherOutputs;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.WeightShard;
import dev.chagres.recipe.WeightShards;
import dev.chagres.sharding.AllGatherBuffers.GatherStreams;
import dev.chagres.sharding.FlatBufferPool.Buffer;
import dev.chagres.sharding.QuantizedContent.Broadcast;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Weights of groups for products in eight bits: each rank casts its shard once a step, and the bytes are gathered. Parameters that products
 * do not read, such as norms and biases, are broadcast in their own type by the ranks that have them, in the same NCCL group call.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedGroups extends AllGatherBuffers {
    private final Parameters parameters;
    /** The quantizers of these weights. */
    final Quantizers quantizers;

    private final QuantizedContent content;
    private final WeightShards casts;
    private final Scope scope;
    /** The memory of this rank's bytes; null: {@link #scope}. */
    private final @Nullable CollectiveMemory window;

    private final Event cast;
    /** By group and piece: this rank's input of the gather, bytes if there are products. */
    private final Tensor[][] parts;
    /** By group: what this rank sends in each broadcast; null if another rank sends. */
    private final @Nullable Tensor[][] sent;

    private final Runnable calls = this::call;
    private int group;
    private @Nullable Buffer buffer;

    QuantizedGroups(Quantizers quantizers, AllGatherOutputs gathered, GatherStreams streams, ByteCounts bytes) {
        this(quantizers, gathered, streams, bytes, QuantizedContent.of(quantizers, streams.ranks().communicator));
    }

    private QuantizedGroups(
            Quantizers quantizers,
            AllGatherOutputs gathered,
            GatherStreams streams,
            ByteCounts bytes,
            QuantizedContent content) {
        super(quantizers.parameters(), content, streams, bytes);
        this.quantizers = quantizers;
        this.content = content;
        parameters = quantizers.parameters();
        int groups = parameters.access().groups().size();
        parts = new Tensor[groups][];
        sent = new Tensor[groups][];
        try (Opened opened = new Opened()) {
            opened.add(buffers);
            cast = opened.add(compute.device().openEvent());
            scope = opened.add(compute.device().openScope(compute)).countedAs(MemoryUse.Holder.QUANTIZED);
            window = streams.ranks().take(ownBytes());
            if (window != null) {
                opened.add(window);
            }
            List<WeightShard> own = new ArrayList<>();
            for (int i = 0; i < groups; i++) {
                take(i, own);
            }
            casts = quantizers.shardWeights(own, gathered, this::maxOverRanks);
            opened.keep();
        }
    }

    private boolean isCast(int of, FlatParameter piece) {
        return !content.products(of, piece).isEmpty();
    }

    private long ownBytes() {
        long bytes = 0;
        for (int i = 0; i < parameters.access().groups().size(); i++) {
            for (FlatParameter piece : content.pieces(i)) {
                bytes += isCast(i, piece)
                        ? CollectiveMemory.byteSizeOf(content.dtype, piece.count() / communicator.ranks())
                        : 0;
            }
        }
        return bytes;
    }

    /** Allocates this rank's bytes of a group, and adds its shards of each weight of the group. */
    private void take(int of, List<WeightShard> own) {
        Scope memory = window == null ? scope : window.scope();
        List<FlatParameter> pieces = content.pieces(of);
        Part part = new Part(communicator.rank(), communicator.ranks());
        Tensor[] whole = new Tensor[pieces.size()];
        Tensor[] gathered = new Tensor[pieces.size()];
        for (int i = 0; i < whole.length; i++) {
            FlatParameter piece = pieces.get(i);
            whole[i] = UnshardedGroups.part(parameters, piece, communicator.ranks());
            List<Parameter> products = content.products(of, piece);
            gathered[i] = isCast(of, piece) ? memory.tensor(content.dtype, whole[i].count()) : whole[i];
            for (Parameter product : products) {
                own.add(part(product, piece, part, whole[i], gathered[i]));
            }
        }
        parts[of] = gathered;
        List<Broadcast> moved = content.broadcasts(of);
        sent[of] = new Tensor[moved.size()];
        for (int i = 0; i < moved.size(); i++) {
            Broadcast one = moved.get(i);
            if (one.root() == part.index()) {
                long first = one.begin() - part.begin(pieces.get(one.piece()).count());
                sent[of][i] = scope.view(whole[one.piece()], first, one.count());
            }
        }
    }

    private WeightShard part(Parameter product, FlatParameter piece, Part part, Tensor whole, Tensor bytes) {
        QuantizerSite site = content.site(product);
        long offset = piece.offset(product);
        long begin = part.begin(piece.count());
        long first = Math.max(begin, offset);
        long end = Math.min(
                begin + part.of(piece.count()), offset + product.shape().count());
        return first < end
                ? new WeightShard(
                        site,
                        first - offset,
                        scope.view(whole, first - begin, end - first),
                        scope.view(bytes, first - begin, end - first))
                : new WeightShard(site, 0, null, null);
    }

    private void maxOverRanks(List<Tensor> amaxes) {
        for (int i = 0; i < amaxes.size(); i++) {
            bytes.allReduce(amaxes.get(i));
            communicator.allReduce(amaxes.get(i), amaxes.get(i), Reduction.MAX, gathers);
        }
    }

    /** Returns whether a group has weights that a call of {@code pass} reads in eight bits. */
    boolean isRead(int ofGroup, Pass pass, Direction direction) {
        boolean inOwnType = direction == Direction.BACKWARD
                && quantizers.recipe().backwardOverride() == BackwardOverride.HIGH_PRECISION;
        return content.hasProducts(ofGroup) && pass.quantizers() == quantizers && !pass.isCalibrating() && !inOwnType;
    }

    /** Returns whether products read {@code parameter} in eight bits. */
    boolean isProduct(Parameter parameter) {
        return content.isProduct(parameter);
    }

    /** Casts this rank's shards for {@code pass}, unless they were cast in this step. */
    void prepare(Pass pass) {
        if (casts.isCast(pass.recording())) {
            return;
        }
        stepped.record(compute);
        gathers.await(stepped);
        if (casts.cast(pass.recording(), gathers)) {
            changed();
        }
        cast.record(gathers);
        compute.await(cast);
    }

    @Override
    void enqueue(int ofGroup, Buffer into) {
        group = ofGroup;
        buffer = into;
        try {
            Communicator.group(calls);
        } finally {
            buffer = null;
        }
    }

    private void call() {
        Buffer into = Checks.given("buffer", buffer);
        Tensor[] own = parts[group];
        for (int i = 0; i < own.length; i++) {
            Tensor whole = into.vector(content.vector(group, i));
            communicator.allGather(own[i], whole, gathers);
            bytes.allGather(whole);
        }
        List<Broadcast> moved = content.broadcasts(group);
        Tensor[] views = buffers.views(group, into);
        for (int i = 0; i < moved.size(); i++) {
            Tensor target = views[content.memberCount(group) + i];
            communicator.broadcast(sent[group][i], target, moved.get(i).root(), gathers);
            bytes.allGather(target);
        }
    }

    /** Returns a weight in eight bits, of a group in use. */
    Tensor weight(QuantizerSite site) {
        int ofGroup = site.weight().group();
        Buffer held = Checks.given("held", buffers.held(ofGroup));
        return buffers.views(ofGroup, held)[content.member(site)];
    }

    @Override
    long byteSize() {
        return super.byteSize() + scope.usedBytes() + (window == null ? 0 : window.byteSize()) + casts.byteSize();
    }

    @Override
    public void close() {
        casts.close();
        super.close();
        scope.close();
        if (window != null) {
            window.close();
        }
        cast.close();
    }
}
