package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.DeviceState;
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

    final DeviceState device;
    final FusedAttentionCall forward;
    final FusedAttentionCall backward;
    final MemorySegment unset;
    private final MemorySegment noRandomness;
    private final MemorySegment noRandomnessHandle;

    private FusedAttentionCalls(DeviceState device) {
        this.device = device;
        unset = device.get(UnsetTensor.ATTACHMENT).handle;
        noRandomness = device.malloc(RANDOMNESS_BYTES);
        Status.cuda(CudaRuntime.cudaMemset(noRandomness, 0, RANDOMNESS_BYTES), "cudaMemset");
        noRandomnessHandle = device.basicTensor().create();
        describeRandomness(null, noRandomnessHandle);
        forward = new Forward(this);
        backward = new Backward(this);
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
        TransformerEngine.te_destroy_tensor(noRandomnessHandle);
        device.free(noRandomness, RANDOMNESS_BYTES);
    }

    private static final class Forward extends FusedAttentionCall {
        Forward(FusedAttentionCalls calls) {
            Status.te(te_create_fused_attn_fwd_params(calls.device.out()), "te_create_fused_attn_fwd_params");
            super(calls.device.out().get(ValueLayout.ADDRESS, 0), calls);
            handle(kNVTEFusedAttnFwdParamsPageTableK(), calls.unset);
            handle(kNVTEFusedAttnFwdParamsPageTableV(), calls.unset);
            handle(kNVTEFusedAttnFwdParamsAuxCtxTensors(), pack.segment());
        }

        @Override
        void write(AttentionProblem with) {
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
        }

        @Override
        void write(AttentionProblem with, AttentionTensors tensors, Stream stream) {
            AttentionScales scales = tensors.scales();
            diagonal(kNVTEFusedAttnFwdParamsBottomRightDiagonal(), with, scales);
            tensor(kNVTEFusedAttnFwdParamsQ(), tensors.query(), scales, AttentionScales::qkv);
            tensor(kNVTEFusedAttnFwdParamsK(), tensors.key(), scales, AttentionScales::qkv);
            tensor(kNVTEFusedAttnFwdParamsV(), tensors.value(), scales, AttentionScales::qkv);
            inner(kNVTEFusedAttnFwdParamsS(), tensors.query().dtype(), scales, AttentionScales::softmax);
            tensor(kNVTEFusedAttnFwdParamsO(), tensors.output(), scales, AttentionScales::output);
            handle(kNVTEFusedAttnFwdParamsBias(), calls.handleOf(tensors.bias()));
            handle(kNVTEFusedAttnFwdParamsSoftmaxOffset(), calls.handleOf(tensors.softmaxOffset()));
            calls.writeLengths(this, kNVTEFusedAttnFwdParamsCuSeqlensQ(), with, tensors);
            handle(kNVTEFusedAttnFwdParamsRngState(), calls.randomness(tensors.rngState()));
            number(kNVTEFusedAttnFwdParamsMaxSeqlenQ(), tensors.queryLength());
            number(kNVTEFusedAttnFwdParamsMaxSeqlenKV(), tensors.keyLength());
            handle(kNVTEFusedAttnFwdParamsStream(), stream.handle());
        }

        @Override
        AskedWorkspace space(AttentionProblem with, AttentionTensors tensors, Stream stream) {
            return AskedWorkspace.of(AskedWorkspace.Function.FUSED_ATTN_FWD, with, stream);
        }

        /** Also checks that the log-sum-exp has the size that the library needs. */
        @Override
        void ask(AskedWorkspace space, AttentionTensors tensors) {
            pack.clear();
            enqueue(space.memory());
            long wanted = pack.statisticsBytes();
            if (wanted != tensors.statistics().byteSize()) {
                throw new IllegalArgumentException("statistics: expected " + wanted
                        + " bytes, which the opened Transformer Engine wants, got "
                        + Checks.describe(tensors.statistics()));
            }
            space.keep();
        }

        @Override
        void enqueue(MemorySegment workspace) {
            handle(kNVTEFusedAttnFwdParamsWorkspace(), workspace);
            Status.te(te_fused_attn_fwd_v2(object), "te_fused_attn_fwd_v2");
        }

        @Override
        void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
            Status.te(
                    te_set_fused_attn_fwd_params_attribute(target, attribute, from, byteSize),
                    "te_set_fused_attn_fwd_params_attribute");
        }

        @Override
        void close() {
            te_destroy_fused_attn_fwd_params(object);
            super.close();
        }
    }

    private static final class Backward extends FusedAttentionCall {
        Backward(FusedAttentionCalls calls) {
            Status.te(te_create_fused_attn_bwd_params(calls.device.out()), "te_create_fused_attn_bwd_params");
            super(calls.device.out().get(ValueLayout.ADDRESS, 0), calls);
            handle(kNVTEFusedAttnBwdParamsAuxCtxTensors(), pack.segment());
        }

        @Override
        void write(AttentionProblem with) {
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
        }

        @Override
        void write(AttentionProblem with, AttentionTensors tensors, Stream stream) {
            AttentionScales scales = tensors.scales();
            DType gradientType = tensors.outputGradient().dtype();
            diagonal(kNVTEFusedAttnBwdParamsBottomRightDiagonal(), with, scales);
            tensor(kNVTEFusedAttnBwdParamsQ(), tensors.query(), scales, AttentionScales::qkv);
            tensor(kNVTEFusedAttnBwdParamsK(), tensors.key(), scales, AttentionScales::qkv);
            tensor(kNVTEFusedAttnBwdParamsV(), tensors.value(), scales, AttentionScales::qkv);
            tensor(kNVTEFusedAttnBwdParamsO(), tensors.output(), scales, AttentionScales::output);
            tensor(kNVTEFusedAttnBwdParamsDO(), tensors.outputGradient(), scales, AttentionScales::outputGradient);
            inner(kNVTEFusedAttnBwdParamsS(), tensors.query().dtype(), scales, AttentionScales::softmax);
            inner(kNVTEFusedAttnBwdParamsDP(), gradientType, scales, AttentionScales::scoreGradient);
            tensor(kNVTEFusedAttnBwdParamsDQ(), tensors.queryGradient(), scales, AttentionScales::qkvGradient);
            tensor(kNVTEFusedAttnBwdParamsDK(), tensors.keyGradient(), scales, AttentionScales::qkvGradient);
            tensor(kNVTEFusedAttnBwdParamsDV(), tensors.valueGradient(), scales, AttentionScales::qkvGradient);
            handle(kNVTEFusedAttnBwdParamsDBias(), zeroed(tensors.biasGradient(), stream));
            handle(kNVTEFusedAttnBwdParamsDSoftmaxOffset(), zeroed(tensors.softmaxOffsetGradient(), stream));
            calls.writeLengths(this, kNVTEFusedAttnBwdParamsCuSeqlensQ(), with, tensors);
            number(kNVTEFusedAttnBwdParamsMaxSeqlenQ(), tensors.queryLength());
            number(kNVTEFusedAttnBwdParamsMaxSeqlenKV(), tensors.keyLength());
            handle(kNVTEFusedAttnBwdParamsStream(), stream.handle());
        }

        /** Zeroes a gradient, since kernels may leave elements of no query or key unwritten, and returns its handle. */
        private MemorySegment zeroed(@Nullable Tensor gradient, Stream stream) {
            if (gradient != null) {
                gradient.zero(stream);
            }
            return calls.handleOf(gradient);
        }

        @Override
        AskedWorkspace space(AttentionProblem with, AttentionTensors tensors, Stream stream) {
            return AskedWorkspace.of(AskedWorkspace.Function.FUSED_ATTN_BWD, with, stream)
                    .with(tensors.outputGradient().dtype().ordinal());
        }

        @Override
        void enqueue(MemorySegment workspace) {
            handle(kNVTEFusedAttnBwdParamsWorkspace(), workspace);
            Status.te(te_fused_attn_bwd_v2(object), "te_fused_attn_bwd_v2");
        }

        @Override
        void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
            Status.te(
                    te_set_fused_attn_bwd_params_attribute(target, attribute, from, byteSize),
                    "te_set_fused_attn_bwd_params_attribute");
        }

        @Override
        void close() {
            te_destroy_fused_attn_bwd_params(object);
            super.close();
        }
    }
}
