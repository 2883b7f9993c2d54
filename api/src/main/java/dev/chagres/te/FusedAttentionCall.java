package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * The forward or the backward call of fused attention: one parameter object, of which each call sets only the attributes that changed.
 *
 * <p>With an unset workspace the library reports the workspace and auxiliary tensors that it needs; with them it runs. Backward needs the
 * auxiliary tensors, log-sum-exp and random state.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h}.
 */
abstract class FusedAttentionCall extends AttributeWriter {
    final FusedAttentionCalls calls;
    final AuxiliaryPack pack;
    /** The handles of tensors in eight bits, by attribute. */
    private final @Nullable ScaledTensor[] scaled = new ScaledTensor[MOST_ATTRIBUTES];

    private @Nullable AttentionProblem problem;

    FusedAttentionCall(MemorySegment object, FusedAttentionCalls calls) {
        super(object, calls.device.arena());
        this.calls = calls;
        pack = new AuxiliaryPack(calls);
    }

    final void run(AttentionProblem with, AttentionTensors tensors, Stream stream) {
        if (problem != with) {
            write(with);
            problem = with;
        }
        write(with, tensors, stream);
        AskedWorkspace space = measured(space(with, tensors, stream), tensors);
        if (!space.isKnown()) {
            ask(space, tensors);
        }
        do {
            pack.describe(tensors);
            enqueue(space.memory());
        } while (space.wasAsked());
    }

    /** Adds the numbers on which the size of the workspace depends. */
    private static AskedWorkspace measured(AskedWorkspace space, AttentionTensors tensors) {
        Tensor query = tensors.query();
        Tensor key = tensors.key();
        Tensor value = tensors.value();
        Tensor bias = tensors.bias();
        int heads = query.rank() - 2;
        return space.withMatrix(query)
                .with(query.size(heads))
                .with(query.size(heads + 1))
                .with(key.size(0))
                .with(key.size(1))
                .with(key.size(heads))
                .with(value.size(heads + 1))
                .with(tensors.sequences())
                .with(tensors.queryLength())
                .with(tensors.keyLength())
                .with(bias == null ? 0 : bias.size(0))
                .with(bias == null ? 0 : bias.size(1));
    }

    /** Sets the attributes that follow from the problem alone. */
    abstract void write(AttentionProblem with);

    /** Sets the others, but for the workspace and the auxiliary tensors. */
    abstract void write(AttentionProblem with, AttentionTensors tensors, Stream stream);

    /** Returns the workspace of such a call, whose size depends on shapes, too. */
    abstract AskedWorkspace space(AttentionProblem with, AttentionTensors tensors, Stream stream);

    /** Asks the library what it wants, where that is unknown, before auxiliary tensors are given. */
    void ask(AskedWorkspace space, AttentionTensors tensors) {
        // The backward call has the tensors of the forward call.
    }

    /** Calls the library. */
    abstract void enqueue(MemorySegment workspace);

    /** Sets {@code attribute} to a tensor, in eight bits with its scale. */
    final void tensor(
            int attribute,
            Tensor tensor,
            @Nullable AttentionScales scales,
            Function<AttentionScales, @Nullable TensorScale> scale) {
        handle(attribute, scales == null ? tensor.handle() : scaled(attribute).of(tensor, scale.apply(scales)));
    }

    /** Sets {@code attribute} to a tensor that exists only inside the kernel. */
    final void inner(
            int attribute,
            DType dtype,
            @Nullable AttentionScales scales,
            Function<AttentionScales, @Nullable TensorScale> scale) {
        handle(attribute, scales == null ? calls.unset : scaled(attribute).ofNothing(dtype, scale.apply(scales)));
    }

    private ScaledTensor scaled(int attribute) {
        ScaledTensor present = scaled[attribute];
        if (present == null) {
            present = new ScaledTensor(calls.device);
            scaled[attribute] = present;
        }
        return present;
    }

    /** Frees the handles. */
    void close() {
        for (ScaledTensor tensor : scaled) {
            if (tensor != null) {
                TransformerEngine.te_destroy_tensor(tensor.handle);
            }
        }
        pack.close();
    }

    /** A handle of one of attention's tensors in eight bits, with its scale; each call describes it anew. */
    private static final class ScaledTensor {
        private final BasicTensor description;
        private final MemorySegment handle;
        /** The addresses that the handle has now; they rarely change from step to step. */
        private long scale;

        private long scaleInverse;
        private long amax;

        ScaledTensor(DeviceState device) {
            description = device.basicTensor();
            handle = description.create();
        }

        /** Returns the handle of {@code data} with its scale, until the next call. */
        MemorySegment of(Tensor data, @Nullable TensorScale by) {
            description.readFrom(data.handle()).writeTo(handle);
            return scaled(Checks.given("scale", by));
        }

        /** Returns the handle of a tensor that exists only inside the kernel, until the next call. */
        MemorySegment ofNothing(DType dtype, @Nullable TensorScale by) {
            description.at(0, dtype.code()).vector(0).writeTo(handle);
            return scaled(Checks.given("scale", by));
        }

        private MemorySegment scaled(TensorScale by) {
            scale = cell(scale, by.scale(), TransformerEngine.kNVTEScale());
            scaleInverse = cell(scaleInverse, by.scaleInverse(), TransformerEngine.kNVTERowwiseScaleInv());
            amax = cell(amax, by.amax(), TransformerEngine.kNVTEAmax());
            return handle;
        }

        private long cell(long before, Tensor number, int parameter) {
            long address = number.address();
            if (address != before) {
                description.at(address, DType.FLOAT32.code()).vector(1).writeTo(handle, parameter);
            }
            return address;
        }
    }

    /**
     * The pack of auxiliary tensors that attention's forward call hands to its backward call: log-sum-exp, random state, then the bias
     * and the offset of the softmax where there are such.
     *
     * <p>Source: {@code NVTETensorPack} in TE's {@code fused_attn.h}.
     */
    static final class AuxiliaryPack {
        private static final int STATISTICS = 0;
        private static final int RANDOMNESS = 1;
        private static final int RANK = 4;
        private static final int MOST = 4;

        private final FusedAttentionCalls calls;
        private final BasicTensor description;
        private final MemorySegment pack;
        /** Kept, since a segment made for each call would be garbage. */
        private final MemorySegment[] handles = new MemorySegment[MOST];

        private final long[] sizes = new long[RANK];

        /** Makes a pack of handles without tensors. */
        AuxiliaryPack(FusedAttentionCalls calls) {
            this.calls = calls;
            DeviceState device = calls.device;
            description = device.basicTensor();
            pack = NVTETensorPack.allocate(device.arena());
            Status.te(TransformerEngine.te_tensor_pack_create(pack), "te_tensor_pack_create");
            for (int i = 0; i < MOST; i++) {
                handles[i] = pack.get(
                        ValueLayout.ADDRESS, NVTETensorPack.tensors$offset() + i * ValueLayout.ADDRESS.byteSize());
            }
        }

        MemorySegment segment() {
            return pack;
        }

        /** Empties the pack, so that the library reports which tensors it needs. */
        void clear() {
            NVTETensorPack.size(pack, 0);
        }

        /** Returns the bytes that the library needs for the log-sum-exp. */
        long statisticsBytes() {
            return description.readFrom(handles[STATISTICS]).byteSize();
        }

        /** Describes the tensors of a call. */
        void describe(AttentionTensors tensors) {
            description.readFrom(tensors.statistics().handle()).writeTo(handles[STATISTICS]);
            calls.describeRandomness(tensors.rngState(), handles[RANDOMNESS]);
            int count = RANDOMNESS + 1;
            Tensor bias = tensors.bias();
            if (bias != null) {
                description.readFrom(bias.handle()).writeTo(handles[count]);
                count++;
            }
            NVTETensorPack.size(pack, describeOffset(tensors.softmaxOffset(), count));
        }

        /** [h] as TE has it: [1, h, 1, 1]. */
        private int describeOffset(@Nullable Tensor offset, int index) {
            if (offset == null) {
                return index;
            }
            sizes[0] = 1;
            sizes[1] = offset.count();
            sizes[2] = 1;
            sizes[3] = 1;
            description
                    .at(offset.address(), TransformerEngine.kNVTEFloat32())
                    .shape(sizes, RANK)
                    .writeTo(handles[index]);
            return index + 1;
        }

        void close() {
            TransformerEngine.te_tensor_pack_destroy(pack);
        }
    }
}
