package dev.chagres.te;

import static dev.chagres.bindings.te.TransformerEngine.*;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.AttentionWork;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Numbers;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.WorkListener;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Attention by cuDNN's kernels, {@code o = dropout(softmax(scale q k^T + bias + mask)) v} for each head, and its gradients. The problem
 * says whether there is a bias tensor or ALiBi ({@link BiasType}), and whether the denominator of the softmax has an offset ({@link
 * SoftmaxType}).
 *
 * <p>FLOAT16, BFLOAT16 and, with {@link AttentionTensors#scales}, eight bits; the softmax is computed in FP32. {@link #refusal} tells which
 * problems cuDNN takes; the reference takes FLOAT32 too. In eight bits softmax weights, gradients of scores and results are rounded to
 * eight bits as well, each with its own scale: {@code q = x scale}, clamped to the largest number of the type, stands for {@code q
 * scaleInverse}. A call overwrites each amax with the largest magnitude before scaling. {@link AttentionTensors} describes the tensors. Every tensor
 * of heads begins at a multiple of 16 bytes.
 *
 * <p>The workspace sizes of the last few geometries are cached.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_fused_attn_fwd_v2}, {@code nvte_fused_attn_bwd_v2}, {@code nvte_get_fused_attn_backend_v2} in TE's
 * {@code fused_attn.h}.
 */
public final class FusedAttention {
    private FusedAttention() {}

    /**
     * Enqueues attention: writes output and statistics. Rows of packed tensors behind the last sequence stay as they are.
     * Without queries nothing happens; without keys the output is 0 and the statistics stay as they are.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     * @throws dev.chagres.bindings.TransformerEngineException when cuDNN does not take the problem: see {@link #refusal}
     */
    public static void forward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
        refuseStarts(tensors);
        Checks.given("tensors", tensors).checkForward(problem, stream);
        if (tensors.output().count() == 0) {
            return;
        }
        if (tensors.key().count() == 0) {
            tensors.output().zero(stream);
            return;
        }
        tell(problem, tensors, WorkListener.Part.FORWARD, stream);
        Inside.state(stream).get(FusedAttentionCalls.ATTACHMENT).forward.run(problem, tensors, stream);
    }

    /**
     * Enqueues the gradients of {@link #forward}, which was called with this problem and these tensors. Rows of packed
     * gradients behind the last sequence stay as they are. Where there are no queries or no keys the gradients are 0.
     *
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a tensor was not given, or is closed
     * @throws dev.chagres.bindings.TransformerEngineException when cuDNN does not take the problem: see {@link #refusal}
     */
    public static void backward(AttentionProblem problem, AttentionTensors tensors, Stream stream) {
        refuseStarts(tensors);
        Checks.given("tensors", tensors).checkBackward(problem, stream);
        if (tensors.output().count() == 0 || tensors.key().count() == 0) {
            AttentionPlaces.zeroGradients(problem.layout(), tensors, stream);
            zero(tensors.biasGradient(), stream);
            zero(tensors.softmaxOffsetGradient(), stream);
            return;
        }
        tell(problem, tensors, WorkListener.Part.GRADIENT, stream);
        Inside.state(stream).get(FusedAttentionCalls.ATTACHMENT).backward.run(problem, tensors, stream);
    }

    private static void tell(
            AttentionProblem problem, AttentionTensors tensors, WorkListener.Part part, Stream stream) {
        long right = problem.mask().isCausal() ? 0 : problem.windowRight();
        AttentionWork.tell(part, tensors.query(), tensors.output(), problem.windowLeft(), right, stream);
    }

    private static void zero(@Nullable Tensor gradient, Stream stream) {
        if (gradient != null) {
            gradient.zero(stream);
        }
    }

    /**
     * Returns the shape of the statistics of these queries: [T, h, 1] packed, else [B, h, S, 1].
     *
     * @throws IllegalArgumentException when the query has too few dimensions to have heads
     */
    public static Shape statisticsShape(AttentionProblem problem, AttentionTensors tensors) {
        Checks.given("problem", problem);
        Tensor query = Checks.given("tensors", tensors).query();
        long heads = heads(query);
        return problem.layout().format() == QkvFormat.THD
                ? Shape.of(query.size(0), heads, 1)
                : Shape.of(tensors.sequences(), heads, tensors.queryLength(), 1);
    }

    private static long heads(Tensor query) {
        if (query.rank() < 3) {
            throw new IllegalArgumentException(
                    "query: expected [T, h, d], [B, S, h, d] or [S, B, h, d], got " + Checks.describe(query));
        }
        return query.size(query.rank() - 2);
    }

    /**
     * Allocates the statistics of these queries, FLOAT32 of {@link #statisticsShape}.
     *
     * @throws IllegalArgumentException when the query has too few dimensions to have heads
     */
    public static Tensor statistics(AttentionProblem problem, AttentionTensors tensors, Scope scope) {
        Checks.given("problem", problem, "scope", scope);
        Tensor query = Checks.given("tensors", tensors).query();
        long heads = heads(query);
        return problem.layout().format() == QkvFormat.THD
                ? scope.tensor(DType.FLOAT32, query.size(0), heads, 1)
                : scope.tensor(DType.FLOAT32, tensors.sequences(), heads, tensors.queryLength(), 1);
    }

    /**
     * Returns why cuDNN does not take a problem of these sizes, forward or, in training, backward; null when it does. TE builds cuDNN's
     * plan to find the answer; the last answers of a device are cached.
     */
    public static @Nullable String refusal(AttentionProblem problem, DType dtype, AttentionSizes sizes, Device device) {
        Checks.given("problem", problem, "dtype", dtype, "sizes", sizes);
        return ask(problem, dtype, dtype, sizes, device);
    }

    /**
     * Returns why cuDNN does not take a problem in eight bits of these sizes, as {@link #refusal(AttentionProblem, DType,
     * AttentionSizes, Device)} does.
     *
     * @param dtype of query, key, value and output: FLOAT8_E4M3
     * @param gradientType of their gradients: FLOAT8_E5M2 or FLOAT8_E4M3
     */
    public static @Nullable String refusal(
            AttentionProblem problem, DType dtype, DType gradientType, AttentionSizes sizes, Device device) {
        Checks.given("problem", problem, "dtype", dtype, "gradientType", gradientType, "sizes", sizes);
        return ask(problem, dtype, gradientType, sizes, device);
    }

    private static @Nullable String ask(
            AttentionProblem problem, DType dtype, DType gradientType, AttentionSizes sizes, Device device) {
        DeviceState state = Inside.state(Checks.given("device", device));
        state.ensureCurrent();
        return state.get(FusedAttentionAnswers.ATTACHMENT).refusal(problem, dtype, gradientType, sizes);
    }

    private static void refuseStarts(AttentionTensors tensors) {
        if (Checks.given("tensors", tensors).queryStarts() != null || tensors.keyStarts() != null) {
            throw new IllegalArgumentException(
                    "starts: expected none, for sequences follow each other without gaps here; call"
                            + " dev.chagres.ops.Attention");
        }
    }

    /**
     * Enqueues {@code rngState = {seed, offset}}, {@code nvte_extract_seed_and_offset}: the random state of a dropout.
     *
     * @param rngState INT64 [2]
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public static void extractSeedAndOffset(Tensor rngState, long seed, long offset, Stream stream) {
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.writable("rngState", rngState);
        Status.te(
                AddressCalls.te_extract_seed_and_offset(rngState.address(), 0, 0, seed, 0, offset, 0, stream.handle()),
                "te_extract_seed_and_offset");
    }

    /**
     * Enqueues {@code rngState = {seed, offset + draws}} with a seed and an offset on the device: each replay of a graph reads them anew.
     *
     * @param rngState INT64 [2]
     * @param seed INT64 [1]
     * @param offset INT64 [1]
     * @param draws made since the offset was written, at least 0
     * @throws IllegalArgumentException when shapes, types, draws or devices do not fit, or the state shares memory
     */
    public static void extractSeedAndOffset(Tensor rngState, Tensor seed, Tensor offset, int draws, Stream stream) {
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.vector(stream, "seed", seed, DType.INT64, 1);
        Checks.vector(stream, "offset", offset, DType.INT64, 1);
        Numbers.atLeastZero("draws", draws);
        Checks.written("rngState", rngState, "seed", seed, "offset", offset);
        Status.te(
                AddressCalls.te_extract_seed_and_offset(
                        rngState.address(), 1, seed.address(), 0, offset.address(), 0, draws, stream.handle()),
                "te_extract_seed_and_offset");
    }

    /**
     * Enqueues {@code rngState = {seed, offset}}, {@code nvte_populate_rng_state_async}, with a seed on the device. TE counts the offset:
     * per thread, from 0 on, 16 more in each call. A graph keeps the offset of its capture, so each replay draws the same numbers unless
     * the seed changes; {@link #extractSeedAndOffset(Tensor, Tensor, Tensor, int, Stream)} reads the offset from the device, too.
     *
     * @param rngState INT64 [2]
     * @param seed INT64 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or the state shares memory
     */
    public static void populateRngState(Tensor rngState, Tensor seed, Stream stream) {
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.vector(stream, "seed", seed, DType.INT64, 1);
        Checks.written("rngState", rngState, "seed", seed);
        // TE reads the lengths only for other backends than this one.
        Status.te(
                TransformerEngine.te_populate_rng_state_async(
                        MemorySegment.ofAddress(rngState.address()),
                        MemorySegment.ofAddress(seed.address()),
                        0,
                        0,
                        TransformerEngine.NVTE_F16_arbitrary_seqlen(),
                        stream.handle()),
                "te_populate_rng_state_async");
    }

    /** Caches TE's last answers whether it takes a problem, for one device: TE builds a cuDNN plan for each answer. */
    private static final class FusedAttentionAnswers {
        static final DeviceState.Attachment<FusedAttentionAnswers> ATTACHMENT =
                new DeviceState.Attachment<>(FusedAttentionAnswers::new);

        private static final int MOST = 256;

        private record Question(AttentionProblem problem, DType dtype, DType gradientType, AttentionSizes sizes) {}

        private final DeviceState device;
        /** The oldest first. */
        private final Map<Question, Optional<String>> answers = new LinkedHashMap<>();

        private FusedAttentionAnswers(DeviceState device) {
            this.device = device;
        }

        /** Returns TE's reason for refusing, or null. */
        @Nullable
        String refusal(AttentionProblem problem, DType dtype, DType gradientType, AttentionSizes sizes) {
            Question question = new Question(problem, dtype, gradientType, sizes);
            Optional<String> known = answers.get(question);
            if (known == null) {
                known = Optional.ofNullable(FusedAttentionQuestion.ask(problem, dtype, gradientType, sizes, device));
                if (answers.size() == MOST) {
                    answers.remove(answers.keySet().iterator().next());
                }
                answers.put(question, known);
            }
            return known.orElse(null);
        }

        /**
         * Asks whether fused attention takes a problem, with a configuration object that lives as long as the question.
         *
         * <p>Source: {@code nvte_get_fused_attn_backend_v2} in TE's {@code fused_attn.h}.
         */
        private static final class FusedAttentionQuestion extends AttributeWriter {
            private FusedAttentionQuestion(DeviceState device, Arena arena) {
                super(create(device), arena);
            }

            /** Returns TE's reason for refusing, or null. */
            static @Nullable String ask(
                    AttentionProblem problem,
                    DType dtype,
                    DType gradientType,
                    AttentionSizes sizes,
                    DeviceState device) {
                device.ensureCurrent();
                try (Arena arena = Arena.ofConfined()) {
                    FusedAttentionQuestion question = new FusedAttentionQuestion(device, arena);
                    try {
                        question.describe(problem, dtype, gradientType);
                        question.measure(problem, sizes);
                        return question.answer(arena);
                    } finally {
                        te_destroy_fused_attn_config(question.object);
                    }
                }
            }

            private void describe(AttentionProblem problem, DType dtype, DType gradientType) {
                QkvLayout layout = problem.layout();
                flag(kNVTEFusedAttnConfigIsTraining(), problem.mode() == AttentionProblem.Mode.TRAINING);
                flag(kNVTEFusedAttnConfigDeterministic(), problem.order() == AttentionProblem.Order.DETERMINISTIC);
                number(kNVTEFusedAttnConfigAttnMaskType(), problem.mask().code());
                flag(kNVTEFusedAttnConfigBottomRightDiagonal(), isBottomRight(problem, dtype.isFloat8()));
                number(kNVTEFusedAttnConfigBiasType(), problem.biasType().code());
                number(kNVTEFusedAttnConfigSoftmaxType(), problem.softmaxType().code());
                number(kNVTEFusedAttnConfigWindowSizeLeft(), problem.windowLeft());
                number(kNVTEFusedAttnConfigWindowSizeRight(), problem.mask().isCausal() ? 0L : problem.windowRight());
                number(kNVTEFusedAttnConfigDropout(), problem.dropout());
                number(kNVTEFusedAttnConfigAttnScale(), problem.scale());
                number(kNVTEFusedAttnConfigQKVDtype(), dtype.code());
                number(kNVTEFusedAttnConfigODtype(), dtype.code());
                number(kNVTEFusedAttnConfigDODtype(), gradientType.code());
                number(kNVTEFusedAttnConfigDQKVDtype(), gradientType.code());
                number(kNVTEFusedAttnConfigQKVLayout(), layout.code());
                number(kNVTEFusedAttnConfigDQKVLayout(), layout.code());
                number(kNVTEFusedAttnConfigOFormat(), layout.format().code());
                number(kNVTEFusedAttnConfigDOFormat(), layout.format().code());
            }

            private void measure(AttentionProblem problem, AttentionSizes sizes) {
                number(kNVTEFusedAttnConfigBatchSize(), sizes.sequences());
                number(kNVTEFusedAttnConfigNumAttnHeads(), sizes.heads());
                number(kNVTEFusedAttnConfigNumGQAGroups(), sizes.keyHeads());
                number(kNVTEFusedAttnConfigHeadDimQK(), sizes.headDim());
                number(kNVTEFusedAttnConfigHeadDimV(), sizes.valueDim());
                number(kNVTEFusedAttnConfigMaxSeqlenQ(), sizes.queryLength());
                number(kNVTEFusedAttnConfigMaxSeqlenKV(), sizes.keyLength());
                if (problem.layout().format() == QkvFormat.THD) {
                    number(kNVTEFusedAttnConfigNumTokensQ(), sizes.queryTokens());
                    number(kNVTEFusedAttnConfigNumTokensKV(), sizes.keyTokens());
                }
                if (problem.biasType().isTensor()) {
                    number(kNVTEFusedAttnConfigBiasBatchSize(), sizes.biasSequences());
                    number(kNVTEFusedAttnConfigBiasNumHeads(), sizes.biasHeads());
                    number(kNVTEFusedAttnConfigBiasSeqlenQ(), sizes.queryLength());
                    number(kNVTEFusedAttnConfigBiasSeqlenKV(), sizes.keyLength());
                }
            }

            private @Nullable String answer(Arena arena) {
                MemorySegment message = arena.allocate(C_POINTER);
                MemorySegment backend = arena.allocate(ValueLayout.JAVA_INT);
                Status.te(te_get_fused_attn_backend_v2(object, message, backend), "te_get_fused_attn_backend_v2");
                if (backend.get(ValueLayout.JAVA_INT, 0) != NVTE_No_Backend()) {
                    return null;
                }
                MemorySegment text = message.get(C_POINTER, 0);
                return text.address() == 0 ? "no reason given" : text.getString(0);
            }

            private static MemorySegment create(DeviceState device) {
                Status.te(te_create_fused_attn_config(device.out()), "te_create_fused_attn_config");
                return device.out().get(ValueLayout.ADDRESS, 0);
            }

            @Override
            void set(MemorySegment target, int attribute, MemorySegment from, long byteSize) {
                Status.te(
                        te_set_fused_attn_config_attribute(target, attribute, from, byteSize),
                        "te_set_fused_attn_config_attribute");
            }
        }
    }
}
