package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Opened;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver.Direction;
import dev.chagres.recipe.AllGatherOutputs;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.AllGatherBuffers.GatherStreams;
import dev.chagres.sharding.FlatBufferPool.Buffer;
import org.jspecify.annotations.Nullable;

/**
 * Sharded weights: a group is gathered, on a separate stream and communicator, into the buffer that its layers read, and the next group is
 * prefetched while they run. Weights that a pass multiplies in eight bits are gathered in eight bits.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedWeights implements AutoCloseable {
    private final Parameters parameters;
    private final GatherStreams streams;
    private final ByteCounts bytes;
    private final int groups;
    private final UnshardedGroups whole;
    /** By group: the buffer that its members' weights are views of. */
    private final @Nullable Buffer[] lent;
    /** Null if no pass computes in eight bits. */
    private @Nullable QuantizedGroups quantized;
    /** The version of the parameters that were gathered. */
    private int version;

    ShardedWeights(Parameters parameters, GatherRanks ranks, Reshard reshard, ByteCounts bytes) {
        this.parameters = parameters;
        this.bytes = bytes;
        version = parameters.version();
        Stream compute = parameters.scope().stream();
        groups = parameters.access().groups().size();
        lent = new Buffer[groups];
        try (Opened opened = new Opened()) {
            Stream gathers = opened.add(compute.device().openStream());
            Event stepped = opened.add(compute.device().openEvent());
            stepped.record(compute);
            streams = new GatherStreams(ranks, compute, gathers, stepped, reshard);
            whole = new UnshardedGroups(parameters, streams, bytes);
            opened.keep();
        }
    }

    /** From now on gathers the weights that {@code quantizers} cast in eight bits; others are ignored until these are closed. */
    void gatherQuantized(Quantizers quantizers, AllGatherOutputs gathered) {
        QuantizedGroups present = quantized;
        if (present != null && !present.quantizers.isOpen()) {
            present.close();
            present = null;
        }
        if (present == null) {
            quantized = new QuantizedGroups(quantizers, gathered, streams, bytes);
        }
    }

    /** Returns whether weights of products in eight bits are gathered in eight bits. */
    boolean gathersQuantized() {
        return quantized != null;
    }

    /** Returns how a call of {@code pass} that reads {@code parameter} gathers its group. */
    WeightForm form(Parameter parameter, Pass pass, Direction direction) {
        QuantizedGroups present = quantized;
        return present != null && !present.isProduct(parameter)
                ? form(parameter.group(), pass, direction)
                : WeightForm.UNSHARDED;
    }

    private WeightForm form(int group, Pass pass, Direction direction) {
        QuantizedGroups present = quantized;
        return present != null && present.isRead(group, pass, direction) ? WeightForm.QUANTIZED : WeightForm.UNSHARDED;
    }

    /** Makes the computing stream wait for the weights of {@code group}, which stay until {@link #release}. */
    void use(int group, WeightForm form, Pass pass) {
        follow();
        of(form, pass).use(group);
    }

    /** Discards gathered weights if shards were written from outside since, unless calls are reading some. */
    private void follow() {
        boolean isRead = whole.buffers.isPinned() || (quantized != null && quantized.buffers.isPinned());
        if (version != parameters.version() && !isRead) {
            changed();
        }
    }

    /** Prefetches the group after {@code group}, if a buffer is idle. */
    void prefetch(int group, Pass pass, Direction direction) {
        int next = direction == Direction.FORWARD ? group + 1 : group - 1;
        if (next >= 0 && next < groups) {
            of(form(next, pass, direction), pass).prefetch(next);
        }
    }

    private AllGatherBuffers of(WeightForm form, Pass pass) {
        QuantizedGroups present = quantized;
        if (form == WeightForm.UNSHARDED || present == null) {
            return whole;
        }
        present.prepare(pass);
        return present;
    }

    /** Sets members of a group in use to the weights gathered in this form. */
    void lend(int group, WeightForm form) {
        FlatBufferPool from = form == WeightForm.UNSHARDED || quantized == null ? whole.buffers : quantized.buffers;
        Buffer held = from.held(group);
        if (held != null && lent[group] != held) {
            from.lend(group, held);
            lent[group] = held;
        }
    }

    /** Records amaxes for a calibrating pass. */
    void record(Pass pass) {
        of(WeightForm.QUANTIZED, pass);
    }

    /** Returns a weight in eight bits, of a group in use. */
    Tensor quantized(QuantizerSite site) {
        QuantizedGroups present = quantized;
        if (present == null) {
            throw new IllegalStateException(site + ": expected quantizers that this gathers weights of, got others");
        }
        return present.weight(site);
    }

    /** Records that a call has enqueued all reads of the weights of {@code group}. */
    void release(int group, WeightForm form) {
        QuantizedGroups present = quantized;
        if (form == WeightForm.UNSHARDED) {
            whole.release(group);
        } else if (present != null) {
            present.release(group);
        }
    }

    /** Records that the shards were written, so that gathered weights are outdated. */
    void changed() {
        version = parameters.version();
        streams.stepped().record(streams.compute());
        whole.changed();
        if (quantized != null) {
            quantized.changed();
        }
    }

    long byteSize() {
        return whole.byteSize() + (quantized == null ? 0 : quantized.byteSize());
    }

    @Override
    public void close() {
        streams.gathers().close();
        streams.stepped().close();
        whole.close();
        if (quantized != null) {
            quantized.close();
        }
    }
}
