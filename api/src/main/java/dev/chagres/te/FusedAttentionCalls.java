package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Workspace;
import dev.chagres.te.FusedAttentionForward.AttentionGeometry;
import dev.chagres.te.FusedAttentionForward.AuxiliaryPack;
import dev.chagres.te.HandleArrays.UnsetTensor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * What one device keeps for fused attention: the parameter objects of both directions, the handle of an absent tensor, and an unused random
 * state.
 *
 * <p>Threading: the device's thread.
 */
final class FusedAttentionCalls implements AutoCloseable {
    static final DeviceState.Attachment<FusedAttentionCalls> ATTACHMENT =
            new DeviceState.Attachment<>(FusedAttentionCalls::new);

    private static final long RANDOMNESS_WORDS = 2;
    private static final long RANDOMNESS_BYTES = RANDOMNESS_WORDS * Long.BYTES;

    private final DeviceState device;
    private final FusedAttentionForward forward;
    private final FusedAttentionBackward backward;
    private final ScaledAttention scaled;
    private final MemorySegment unset;
    private final MemorySegment noRandomness;
    private final MemorySegment noRandomnessHandle;

    private FusedAttentionCalls(DeviceState device) {
        this.device = device;
        unset = device.get(UnsetTensor.ATTACHMENT).handle();
        noRandomness = device.malloc(RANDOMNESS_BYTES);
        Status.cuda(CudaRuntime.cudaMemset(noRandomness, 0, RANDOMNESS_BYTES), "cudaMemset");
        noRandomnessHandle = device.basicTensor().create();
        describeRandomness(null, noRandomnessHandle);
        scaled = new ScaledAttention(device);
        forward = new FusedAttentionForward(this);
        backward = new FusedAttentionBackward(this);
    }

    FusedAttentionForward forward() {
        return forward;
    }

    FusedAttentionBackward backward() {
        return backward;
    }

    /** Returns the handles of tensors in eight bits. */
    ScaledAttention scaled() {
        return scaled;
    }

    DeviceState device() {
        return device;
    }

    MemorySegment unset() {
        return unset;
    }

    /** Sets lengths of query and key, then their token offsets: four attributes from {@code first} on. */
    void writeLengths(AttributeWriter writer, int first, AttentionProblem problem, AttentionTensors tensors) {
        MemorySegment queries = tensors.queryLengths().handle();
        MemorySegment keys = tensors.keyLengths().handle();
        boolean packed = problem.layout().format() == QkvFormat.THD;
        writer.handle(first, queries);
        writer.handle(first + 1, keys);
        writer.handle(first + 2, packed ? queries : unset);
        writer.handle(first + 3, packed ? keys : unset);
    }

    /** Returns the handle of {@code tensor}; null: that of an absent tensor. */
    MemorySegment handleOf(@Nullable Tensor tensor) {
        return tensor == null ? unset : tensor.handle();
    }

    /** Returns the handle of the random state {@code given}; null: that of the unused one. */
    MemorySegment randomness(@Nullable Tensor given) {
        return given == null ? noRandomnessHandle : given.handle();
    }

    /** Describes the random state {@code given} in {@code handle}; null: the unused one. */
    void describeRandomness(@Nullable Tensor given, MemorySegment handle) {
        long state = given == null ? noRandomness.address() : given.address();
        device.basicTensor()
                .at(state, TransformerEngine.kNVTEInt64())
                .vector(RANDOMNESS_WORDS)
                .writeTo(handle);
    }

    @Override
    public void close() {
        forward.close();
        backward.close();
        scaled.close();
        TransformerEngine.te_destroy_tensor(noRandomnessHandle);
        device.free(noRandomness, RANDOMNESS_BYTES);
    }

    /**
     * The handles of attention's tensors in eight bits, one set per device; each call describes them anew.
     */
    static final class ScaledAttention implements AutoCloseable {
        private final ScaledTensor query;
        private final ScaledTensor key;
        private final ScaledTensor value;
        private final ScaledTensor softmax;
        private final ScaledTensor output;
        private final ScaledTensor outputGradient;
        private final ScaledTensor scoreGradient;
        private final ScaledTensor queryGradient;
        private final ScaledTensor keyGradient;
        private final ScaledTensor valueGradient;

        ScaledAttention(DeviceState device) {
            query = new ScaledTensor(device);
            key = new ScaledTensor(device);
            value = new ScaledTensor(device);
            softmax = new ScaledTensor(device);
            output = new ScaledTensor(device);
            outputGradient = new ScaledTensor(device);
            scoreGradient = new ScaledTensor(device);
            queryGradient = new ScaledTensor(device);
            keyGradient = new ScaledTensor(device);
            valueGradient = new ScaledTensor(device);
        }

        /** Sets the tensors of a forward call. */
        void writeForward(AttributeWriter writer, AttentionTensors tensors, AttentionScales scales) {
            writer.handle(kNVTEFusedAttnFwdParamsQ(), query.of(tensors.query(), scales.qkv()));
            writer.handle(kNVTEFusedAttnFwdParamsK(), key.of(tensors.key(), scales.qkv()));
            writer.handle(kNVTEFusedAttnFwdParamsV(), value.of(tensors.value(), scales.qkv()));
            writer.handle(
                    kNVTEFusedAttnFwdParamsS(),
                    softmax.ofNothing(tensors.query().dtype(), scales.softmax()));
            writer.handle(kNVTEFusedAttnFwdParamsO(), output.of(tensors.output(), scales.output()));
        }

        /** Sets the tensors of a backward call. */
        void writeBackward(AttributeWriter writer, AttentionTensors tensors, AttentionScales scales) {
            TensorScale incoming = Checks.given("outputGradient", scales.outputGradient());
            TensorScale scores = Checks.given("scoreGradient", scales.scoreGradient());
            TensorScale outgoing = Checks.given("qkvGradient", scales.qkvGradient());
            writer.handle(kNVTEFusedAttnBwdParamsQ(), query.of(tensors.query(), scales.qkv()));
            writer.handle(kNVTEFusedAttnBwdParamsK(), key.of(tensors.key(), scales.qkv()));
            writer.handle(kNVTEFusedAttnBwdParamsV(), value.of(tensors.value(), scales.qkv()));
            writer.handle(kNVTEFusedAttnBwdParamsO(), output.of(tensors.output(), scales.output()));
            writer.handle(kNVTEFusedAttnBwdParamsDO(), outputGradient.of(tensors.outputGradient(), incoming));
            writer.handle(
                    kNVTEFusedAttnBwdParamsS(),
                    softmax.ofNothing(tensors.query().dtype(), scales.softmax()));
            writer.handle(
                    kNVTEFusedAttnBwdParamsDP(),
                    scoreGradient.ofNothing(tensors.outputGradient().dtype(), scores));
            writer.handle(kNVTEFusedAttnBwdParamsDQ(), queryGradient.of(tensors.queryGradient(), outgoing));
            writer.handle(kNVTEFusedAttnBwdParamsDK(), keyGradient.of(tensors.keyGradient(), outgoing));
            writer.handle(kNVTEFusedAttnBwdParamsDV(), valueGradient.of(tensors.valueGradient(), outgoing));
        }

        @Override
        public void close() {
            query.close();
            key.close();
            value.close();
            softmax.close();
            output.close();
            outputGradient.close();
            scoreGradient.close();
            queryGradient.close();
            keyGradient.close();
            valueGradient.close();
        }

        /**
         * A handle of one of attention's tensors in eight bits, with its scale.
         */
        private static final class ScaledTensor implements AutoCloseable {
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
            MemorySegment of(Tensor data, TensorScale by) {
                description.readFrom(data.handle()).writeTo(handle);
                return scaled(by);
            }

            /** Returns the handle of a tensor that exists only inside the kernel, until the next call. */
            MemorySegment ofNothing(DType dtype, TensorScale by) {
                description.at(0, dtype.code()).vector(0).writeTo(handle);
                return scaled(by);
            }

            private MemorySegment scaled(TensorScale by) {
                long newScale = by.scale().address();
                if (newScale != scale) {
                    cell(newScale, kNVTEScale());
                    scale = newScale;
                }
                long newInverse = by.scaleInverse().address();
                if (newInverse != scaleInverse) {
                    cell(newInverse, kNVTERowwiseScaleInv());
                    scaleInverse = newInverse;
                }
                long newAmax = by.amax().address();
                if (newAmax != amax) {
                    cell(newAmax, kNVTEAmax());
                    amax = newAmax;
                }
                return handle;
            }

            private void cell(long address, int parameter) {
                description.at(address, DType.FLOAT32.code()).vector(1).writeTo(handle, parameter);
            }

            @Override
            public void close() {
                te_destroy_tensor(handle);
            }
        }
    }

    /**
     * The backward call of fused attention: one parameter object, of which each call sets only the attributes that changed.
     *
     * <p>Source: {@code nvte_fused_attn_bwd_v2} in TE's {@code fused_attn.h}.
     */
    static final class FusedAttentionBackward extends AttributeWriter {
        private final FusedAttentionCalls calls;
        private final AuxiliaryPack pack;
        private final AttentionGeometry.Recent recent = new AttentionGeometry.Recent();
        private @Nullable AttentionProblem problem;

        FusedAttentionBackward(FusedAttentionCalls calls) {
            super(create(calls.device()), calls.device().arena());
            this.calls = calls;
            pack = new AuxiliaryPack(calls);
            setUnchanging();
        }

        void run(AttentionProblem with, AttentionTensors tensors, Stream stream) {
            use(with);
            AttentionScales scales = tensors.scales();
            diagonal(kNVTEFusedAttnBwdParamsBottomRightDiagonal(), with, scales);
            if (scales == null) {
                writeTensors(tensors);
            } else {
                calls.scaled().writeBackward(this, tensors, scales);
            }
            handle(kNVTEFusedAttnBwdParamsDBias(), zeroed(tensors.biasGradient(), stream));
            handle(kNVTEFusedAttnBwdParamsDSoftmaxOffset(), zeroed(tensors.softmaxOffsetGradient(), stream));
            calls.writeLengths(this, kNVTEFusedAttnBwdParamsCuSeqlensQ(), with, tensors);
            number(kNVTEFusedAttnBwdParamsMaxSeqlenQ(), tensors.queryLength());
            number(kNVTEFusedAttnBwdParamsMaxSeqlenKV(), tensors.keyLength());
            handle(kNVTEFusedAttnBwdParamsStream(), stream.handle());
            pack.describe(tensors);

            Workspace workspace = Inside.workspace(stream);
            DType type = tensors.outputGradient().dtype();
            AttentionGeometry geometry = recent.find(with, tensors, type);
            if (geometry == null) {
                handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.asking());
                Status.te(te_fused_attn_bwd_v2(object()), "te_fused_attn_bwd_v2");
                geometry = recent.remember(with, tensors, type, workspace.asked());
            }
            handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace.provided(geometry.workspaceBytes()));
            Status.te(te_fused_attn_bwd_v2(object()), "te_fused_attn_bwd_v2");
        }

        /** Zeroes a gradient, since kernels may leave elements of no query or key unwritten, and returns its handle. */
        private MemorySegment zeroed(@Nullable Tensor gradient, Stream stream) {
            if (gradient != null) {
                gradient.zero(stream);
            }
            return calls.handleOf(gradient);
        }

        private void writeTensors(AttentionTensors tensors) {
            handle(kNVTEFusedAttnBwdParamsQ(), tensors.query().handle());
            handle(kNVTEFusedAttnBwdParamsK(), tensors.key().handle());
            handle(kNVTEFusedAttnBwdParamsV(), tensors.value().handle());
            handle(kNVTEFusedAttnBwdParamsO(), tensors.output().handle());
            handle(kNVTEFusedAttnBwdParamsDO(), tensors.outputGradient().handle());
            handle(kNVTEFusedAttnBwdParamsS(), calls.unset());
            handle(kNVTEFusedAttnBwdParamsDP(), calls.unset());
            handle(kNVTEFusedAttnBwdParamsDQ(), tensors.queryGradient().handle());
            handle(kNVTEFusedAttnBwdParamsDK(), tensors.keyGradient().handle());
            handle(kNVTEFusedAttnBwdParamsDV(), tensors.valueGradient().handle());
        }

        private void use(AttentionProblem with) {
            if (problem == with) {
                return;
            }
            flag(kNVTEFusedAttnBwdParamsDeterministic(), with.order() == AttentionProblem.Order.DETERMINISTIC);
            number(kNVTEFusedAttnBwdParamsAttnMaskType(), with.mask().code());
            number(kNVTEFusedAttnBwdParamsWindowSizeLeft(), with.windowLeft());
            number(kNVTEFusedAttnBwdParamsWindowSizeRight(), with.mask().isCausal() ? 0L : with.windowRight());
            number(kNVTEFusedAttnBwdParamsDropout(), with.draws() ? with.dropout() : 0f);
            number(kNVTEFusedAttnBwdParamsAttnScale(), with.scale());
            number(kNVTEFusedAttnBwdParamsQKVLayout(), with.layout().code());
            number(kNVTEFusedAttnBwdParamsOFormat(), with.layout().format().code());
            number(kNVTEFusedAttnBwdParamsDOFormat(), with.layout().format().code());
            number(kNVTEFusedAttnBwdParamsDQKVLayout(), with.layout().code());
            number(kNVTEFusedAttnBwdParamsBiasType(), with.biasType().code());
            number(kNVTEFusedAttnBwdParamsSoftmaxType(), with.softmaxType().code());
            problem = with;
        }

        private void setUnchanging() {
            handle(kNVTEFusedAttnBwdParamsAuxCtxTensors(), pack.segment());
        }

        private static MemorySegment create(DeviceState device) {
            Status.te(te_create_fused_attn_bwd_params(device.out()), "te_create_fused_attn_bwd_params");
            return device.out().get(ValueLayout.ADDRESS, 0);
        }

        @Override
        void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
            Status.te(
                    te_set_fused_attn_bwd_params_attribute(target, attribute, from, byteSize),
                    "te_set_fused_attn_bwd_params_attribute");
        }

        void close() {
            te_destroy_fused_attn_bwd_params(object());
            pack.close();
        }
    }
}
