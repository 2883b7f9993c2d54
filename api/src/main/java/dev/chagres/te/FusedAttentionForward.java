package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTETensorPack;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * The forward call of fused attention: one parameter object, of which each call sets only the attributes that changed.
 *
 * <p>With an unset workspace the library reports the workspace and auxiliary tensors that it needs; with them it runs. Backward needs the
 * auxiliary tensors, log-sum-exp and random state.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2} in TE's {@code fused_attn.h}.
 */
final class FusedAttentionForward extends AttributeWriter {
    private final FusedAttentionCalls calls;
    private final AuxiliaryPack pack;
    private final AttentionGeometry.Recent recent = new AttentionGeometry.Recent();
    private @Nullable AttentionProblem problem;

    FusedAttentionForward(FusedAttentionCalls calls) {
        super(create(calls.device()), calls.device().arena());
        this.calls = calls;
        pack = new AuxiliaryPack(calls);
        setUnchanging();
    }

    void run(AttentionProblem with, AttentionTensors tensors, Stream stream) {
        use(with);
        AttentionScales scales = tensors.scales();
        diagonal(kNVTEFusedAttnFwdParamsBottomRightDiagonal(), with, scales);
        if (scales == null) {
            writeTensors(tensors);
        } else {
            calls.scaled().writeForward(this, tensors, scales);
        }
        handle(kNVTEFusedAttnFwdParamsBias(), calls.handleOf(tensors.bias()));
        handle(kNVTEFusedAttnFwdParamsSoftmaxOffset(), calls.handleOf(tensors.softmaxOffset()));
        calls.writeLengths(this, kNVTEFusedAttnFwdParamsCuSeqlensQ(), with, tensors);
        handle(kNVTEFusedAttnFwdParamsRngState(), calls.randomness(tensors.rngState()));
        number(kNVTEFusedAttnFwdParamsMaxSeqlenQ(), tensors.queryLength());
        number(kNVTEFusedAttnFwdParamsMaxSeqlenKV(), tensors.keyLength());
        handle(kNVTEFusedAttnFwdParamsStream(), stream.handle());

        Workspace workspace = Inside.workspace(stream);
        AttentionGeometry geometry = recent.find(with, tensors, null);
        if (geometry == null) {
            ask(workspace, tensors.statistics());
            geometry = recent.remember(with, tensors, null, workspace.asked());
        }
        pack.describe(tensors);
        handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace.provided(geometry.workspaceBytes()));
        Status.te(te_fused_attn_fwd_v2(object()), "te_fused_attn_fwd_v2");
    }

    private void writeTensors(AttentionTensors tensors) {
        handle(kNVTEFusedAttnFwdParamsQ(), tensors.query().handle());
        handle(kNVTEFusedAttnFwdParamsK(), tensors.key().handle());
        handle(kNVTEFusedAttnFwdParamsV(), tensors.value().handle());
        handle(kNVTEFusedAttnFwdParamsS(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsO(), tensors.output().handle());
    }

    private void use(AttentionProblem with) {
        if (problem == with) {
            return;
        }
        flag(kNVTEFusedAttnFwdParamsIsTraining(), with.mode() == AttentionProblem.Mode.TRAINING);
        number(kNVTEFusedAttnFwdParamsAttnMaskType(), with.mask().code());
        number(kNVTEFusedAttnFwdParamsWindowSizeLeft(), with.windowLeft());
        number(kNVTEFusedAttnFwdParamsWindowSizeRight(), with.mask().isCausal() ? 0L : with.windowRight());
        number(kNVTEFusedAttnFwdParamsDropout(), with.dropout());
        number(kNVTEFusedAttnFwdParamsAttnScale(), with.scale());
        number(kNVTEFusedAttnFwdParamsQKVLayout(), with.layout().code());
        number(kNVTEFusedAttnFwdParamsOFormat(), with.layout().format().code());
        number(kNVTEFusedAttnFwdParamsBiasType(), with.biasType().code());
        number(kNVTEFusedAttnFwdParamsSoftmaxType(), with.softmaxType().code());
        problem = with;
    }

    /** Asks the library for its workspace, and checks that the log-sum-exp has the size that it needs. */
    private void ask(Workspace workspace, Tensor statistics) {
        pack.clear();
        handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace.asking());
        Status.te(te_fused_attn_fwd_v2(object()), "te_fused_attn_fwd_v2");
        long wanted = pack.statisticsBytes();
        if (wanted != statistics.byteSize()) {
            throw new IllegalArgumentException("statistics: expected " + wanted
                    + " bytes, which the opened Transformer Engine wants, got " + Checks.describe(statistics));
        }
    }

    private void setUnchanging() {
        handle(kNVTEFusedAttnFwdParamsPageTableK(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsPageTableV(), calls.unset());
        handle(kNVTEFusedAttnFwdParamsAuxCtxTensors(), pack.segment());
    }

    private static MemorySegment create(DeviceState device) {
        Status.te(te_create_fused_attn_fwd_params(device.out()), "te_create_fused_attn_fwd_params");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
        Status.te(
                te_set_fused_attn_fwd_params_attribute(target, attribute, from, byteSize),
                "te_set_fused_attn_fwd_params_attribute");
    }

    void close() {
        te_destroy_fused_attn_fwd_params(object());
        pack.close();
    }

    /**
     * What the workspace size of an attention call depends on, and that size. The last few are cached, so that TE is not asked again for each
     * layer, also where self-attention and cross-attention alternate.
     */
    static final class AttentionGeometry {
        /** A cache of the last few different geometries. */
        static final class Recent {
            private static final int MOST = 4;

            private final AttentionGeometry[] entries = new AttentionGeometry[MOST];
            private int next;

            Recent() {
                for (int i = 0; i < MOST; i++) {
                    entries[i] = new AttentionGeometry();
                }
            }

            /** Returns the cached geometry of such a call, or null; {@code gradientType} is null for a forward call. */
            @Nullable
            AttentionGeometry find(AttentionProblem problem, AttentionTensors tensors, @Nullable DType gradientType) {
                for (AttentionGeometry entry : entries) {
                    if (entry.isThatOf(problem, tensors, gradientType)) {
                        return entry;
                    }
                }
                return null;
            }

            /** Replaces the oldest entry by this call and the workspace size that it needs. */
            AttentionGeometry remember(
                    AttentionProblem problem,
                    AttentionTensors tensors,
                    @Nullable DType gradientType,
                    long workspaceBytes) {
                AttentionGeometry entry = entries[next];
                next = (next + 1) % MOST;
                entry.set(problem, tensors, gradientType, workspaceBytes);
                return entry;
            }
        }

        private @Nullable AttentionProblem problem;
        private @Nullable DType dtype;
        /** The type of the output's gradient; null for a forward call. */
        private @Nullable DType gradientType;

        private long sequences;
        private final Sizes query = new Sizes();
        private final Sizes key = new Sizes();
        private long valueDim;
        private long queryLength;
        private long keyLength;
        /** 0 without bias. */
        private long biasSequences;
        /** 0 without bias. */
        private long biasHeads;

        private long workspaceBytes;

        /** The sizes of a tensor of heads. */
        private static final class Sizes {
            private long first;
            private long second;
            private long heads;
            private long headDim;

            boolean areThoseOf(Tensor tensor) {
                int rank = tensor.rank();
                return tensor.size(0) == first
                        && tensor.size(1) == second
                        && tensor.size(rank - 2) == heads
                        && tensor.size(rank - 1) == headDim;
            }

            void set(Tensor tensor) {
                first = tensor.size(0);
                second = tensor.size(1);
                heads = tensor.size(tensor.rank() - 2);
                headDim = tensor.size(tensor.rank() - 1);
            }
        }

        private boolean isThatOf(
                AttentionProblem newProblem, AttentionTensors tensors, @Nullable DType newGradientType) {
            Tensor value = tensors.value();
            return (newProblem == problem || newProblem.equals(problem))
                    && tensors.query().dtype() == dtype
                    && newGradientType == gradientType
                    && tensors.sequences() == sequences
                    && query.areThoseOf(tensors.query())
                    && key.areThoseOf(tensors.key())
                    && value.size(value.rank() - 1) == valueDim
                    && tensors.queryLength() == queryLength
                    && tensors.keyLength() == keyLength
                    && biasSize(tensors, 0) == biasSequences
                    && biasSize(tensors, 1) == biasHeads;
        }

        private void set(
                AttentionProblem newProblem, AttentionTensors tensors, @Nullable DType newGradientType, long bytes) {
            Tensor value = tensors.value();
            problem = newProblem;
            dtype = tensors.query().dtype();
            gradientType = newGradientType;
            sequences = tensors.sequences();
            query.set(tensors.query());
            key.set(tensors.key());
            valueDim = value.size(value.rank() - 1);
            queryLength = tensors.queryLength();
            keyLength = tensors.keyLength();
            biasSequences = biasSize(tensors, 0);
            biasHeads = biasSize(tensors, 1);
            workspaceBytes = bytes;
        }

        private static long biasSize(AttentionTensors tensors, int dimension) {
            Tensor bias = tensors.bias();
            return bias == null ? 0 : bias.size(dimension);
        }

        long workspaceBytes() {
            return workspaceBytes;
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
            DeviceState device = calls.device();
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
