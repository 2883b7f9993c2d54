package dev.chagres.sharding;

import dev.chagres.Event;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassObserver.Direction;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.QuantizerSite;
import dev.chagres.recipe.GatheredWeights;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.GroupBuffers.Buffer;
import org.jspecify.annotations.Nullable;

/**
 * Weights of which each rank keeps a part: a group is gathered, on a stream and with a communicator of their own, into the memory that
 * its layers read, and the next group while they run. What a pass multiplies in eight bits is gathered in eight bits.
 *
 * <p>Threading: the device's thread.
 */
final class ShardedWeights implements AutoCloseable {
    private final Parameters parameters;
    private final GatherStreams streams;
    private final ByteCounts bytes;
    private final int groups;
    private final WholeGroups whole;
    /** By group: from where its members have their weights. */
    private final @Nullable Buffer[] lent;
    /** Null where no pass computes in eight bits. */
    private @Nullable EightBitGroups eightBits;
    /** That of the parts which are gathered. */
    private int version;

    ShardedWeights(Parameters parameters, GatherRanks ranks, Reshard reshard, ByteCounts bytes) {
        this.parameters = parameters;
        this.bytes = bytes;
        version = parameters.version();
        Stream compute = parameters.scope().stream();
        Stream gathers = compute.device().openStream();
        Event stepped = compute.device().openEvent();
        stepped.record(compute);
        streams = new GatherStreams(ranks, compute, gathers, stepped, reshard);
        groups = parameters.sharing().groups().size();
        lent = new Buffer[groups];
        whole = new WholeGroups(parameters, streams, bytes);
    }

    /** Gathers in eight bits from now on what passes read that {@code quantizers} cast; those of others only once these are closed. */
    void gatherInEightBits(Quantizers quantizers, GatheredWeights gathered) {
        EightBitGroups present = eightBits;
        if (present != null && !present.quantizers().isOpen()) {
            present.close();
            present = null;
        }
        if (present == null) {
            eightBits = new EightBitGroups(quantizers, gathered, streams, bytes);
        }
    }

    /** Returns whether products of weights in eight bits are gathered so. */
    boolean gathersEightBits() {
        return eightBits != null;
    }

    /** Returns how a call of {@code pass} that reads {@code parameter} gathers its group. */
    WeightForm form(Parameter parameter, Pass pass, Direction direction) {
        EightBitGroups present = eightBits;
        return present != null && !present.isProduct(parameter)
                ? form(parameter.group(), pass, direction)
                : WeightForm.WHOLE;
    }

    private WeightForm form(int group, Pass pass, Direction direction) {
        EightBitGroups present = eightBits;
        return present != null && present.isRead(group, pass, direction) ? WeightForm.EIGHT_BITS : WeightForm.WHOLE;
    }

    /** Lets the computing stream wait for the weights of {@code group}, until {@link #release}. */
    void use(int group, WeightForm form, Pass pass) {
        follow();
        of(form, pass).use(group);
    }

    /** Forgets what was gathered where parts were written from outside since; not while calls read some, whose memory is theirs. */
    private void follow() {
        boolean isRead = whole.buffers.isPinned() || (eightBits != null && eightBits.buffers.isPinned());
        if (version != parameters.version() && !isRead) {
            changed();
        }
    }

    /** Gathers what comes after {@code group}, where there is idle memory. */
    void prefetch(int group, Pass pass, Direction direction) {
        int next = direction == Direction.FORWARD ? group + 1 : group - 1;
        if (next >= 0 && next < groups) {
            of(form(next, pass, direction), pass).prefetch(next);
        }
    }

    private GatheredGroups of(WeightForm form, Pass pass) {
        EightBitGroups present = eightBits;
        if (form == WeightForm.WHOLE || present == null) {
            return whole;
        }
        present.prepare(pass);
        return present;
    }

    /** Gives members of a group in use what was gathered in this form. */
    void lend(int group, WeightForm form) {
        GroupBuffers from = form == WeightForm.WHOLE || eightBits == null ? whole.buffers : eightBits.buffers;
        Buffer held = from.held(group);
        if (held != null && lent[group] != held) {
            from.lend(group, held);
            lent[group] = held;
        }
    }

    /** Records what a pass that calibrates asks for. */
    void record(Pass pass) {
        of(WeightForm.EIGHT_BITS, pass);
    }

    /** Returns a weight in eight bits, of a group in use. */
    Tensor eightBits(QuantizerSite site) {
        EightBitGroups present = eightBits;
        if (present == null) {
            throw new IllegalStateException(site + ": expected quantizers that this gathers weights of, got others");
        }
        return present.weight(site);
    }

    /** Says that a call has enqueued all that reads the weights of {@code group}. */
    void release(int group, WeightForm form) {
        EightBitGroups present = eightBits;
        if (form == WeightForm.WHOLE) {
            whole.release(group);
        } else if (present != null) {
            present.release(group);
        }
    }

    /** Says that the parts were written: what was gathered is old. */
    void changed() {
        version = parameters.version();
        streams.stepped().record(streams.compute());
        whole.changed();
        if (eightBits != null) {
            eightBits.changed();
        }
    }

    long byteSize() {
        return whole.byteSize() + (eightBits == null ? 0 : eightBits.byteSize());
    }

    @Override
    public void close() {
        streams.gathers().close();
        streams.stepped().close();
        whole.close();
        if (eightBits != null) {
            eightBits.close();
        }
    }
}
