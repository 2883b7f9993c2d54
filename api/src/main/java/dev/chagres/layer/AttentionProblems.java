package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.Sequences;
import dev.chagres.attention.Sequences.Padding;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.AttentionSizes;
import dev.chagres.te.BiasType;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import java.util.Arrays;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * The problems that one attention may compute, in TE's terms, made beforehand so that calls make no garbage; and TE's answers whether it
 * computes them, of which the last few are kept and found without garbage.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionProblems {
    private static final int PADDINGS = Padding.values().length;
    private static final int BIAS_TYPES = BiasType.values().length;
    private static final int MOST = 16;
    /** TE makes one plan for packed batches of up to this many sequences, another for up to twice as many, and so on. */
    private static final long FEWEST_SEQUENCES = 32;
    /** The same for tokens. */
    private static final long FEWEST_TOKENS = 1024;
    /** Longest lengths are rounded likewise, so that few questions are asked. */
    private static final long SHORTEST = 128;

    /** What precedes the reason: the name of the C function's argument, which configurations name differently. */
    private static final Pattern NAMED_ATTRIBUTE = Pattern.compile("^attribute \\w+( \\S+)?: ");

    private static final class Answer {
        private @Nullable AttentionProblem problem;
        private @Nullable DType dtype;
        private @Nullable DType gradientType;
        private @Nullable Device device;
        private long batch;
        private long length;
        private long keyLength;
        private long tokens;
        private long keyTokens;
        private long biasSequences;
        private long biasHeads;
        private @Nullable String refusal;

        boolean isTo(Answer other) {
            return other.problem == problem
                    && other.dtype == dtype
                    && other.gradientType == gradientType
                    && other.device == device
                    && other.batch == batch
                    && other.length == length
                    && other.keyLength == keyLength
                    && other.tokens == tokens
                    && other.keyTokens == keyTokens
                    && other.biasSequences == biasSequences
                    && other.biasHeads == biasHeads;
        }

        void measure(Sequences sequences) {
            Sequences keys = sequences.keys();
            boolean packed = sequences.format() == QkvFormat.THD;
            batch = packed ? powerOfTwo(sequences.batch(), FEWEST_SEQUENCES) : sequences.batch();
            tokens = packed ? powerOfTwo(sequences.tokens(), FEWEST_TOKENS) : sequences.tokens();
            keyTokens = packed ? powerOfTwo(keys.tokens(), FEWEST_TOKENS) : keys.tokens();
            length = packed ? powerOfTwo(sequences.length(), SHORTEST) : sequences.length();
            keyLength = packed ? powerOfTwo(keys.length(), SHORTEST) : keys.length();
        }

        private static long powerOfTwo(long atLeast, long fewest) {
            return atLeast <= fewest ? fewest : Long.highestOneBit(atLeast - 1) << 1;
        }
    }

    private final AttentionProblem[] plain;
    private final AttentionProblem[] dropping;
    /** By type of the bias. */
    private final AttentionProblem[][] changed = new AttentionProblem[BIAS_TYPES][];

    private final AttentionProblem[][] changedDropping = new AttentionProblem[BIAS_TYPES][];

    private final AttentionConfig config;
    private final Answer[] answers = new Answer[MOST];
    private Answer question = new Answer();
    private int next;

    AttentionProblems(AttentionConfig config) {
        this.config = config;
        Arrays.setAll(answers, i -> new Answer());
        QkvLayout[] layouts = QkvLayout.values();
        plain = new AttentionProblem[layouts.length * PADDINGS];
        dropping = new AttentionProblem[plain.length];
        for (QkvLayout layout : layouts) {
            for (Padding padding : Padding.values()) {
                int index = index(layout, padding);
                AttentionProblem problem = AttentionProblem.of(layout, config.scale())
                        .withMask(config.mask().type(padding))
                        .withWindow(config.mask().windowLeft(), config.mask().windowRight());
                plain[index] = config.order() == Order.DETERMINISTIC ? problem.deterministic() : problem;
                dropping[index] = plain[index].withDropout(config.dropout().probability());
            }
        }
        for (BiasType biasType : BiasType.values()) {
            changed[biasType.ordinal()] = changed(plain, biasType, config.softmaxType());
            changedDropping[biasType.ordinal()] = changed(dropping, biasType, config.softmaxType());
        }
    }

    private static AttentionProblem[] changed(AttentionProblem[] from, BiasType biasType, SoftmaxType softmaxType) {
        if (biasType == BiasType.NO_BIAS && softmaxType == SoftmaxType.VANILLA) {
            return from;
        }
        AttentionProblem[] problems = new AttentionProblem[from.length];
        for (int i = 0; i < from.length; i++) {
            problems[i] = from[i].withBiasType(biasType).withSoftmaxType(softmaxType);
        }
        return problems;
    }

    /** Returns the problem without what becomes of scores: it is said to our own kernels elsewhere. */
    AttentionProblem get(QkvLayout layout, Padding padding, boolean drops) {
        return (drops ? dropping : plain)[index(layout, padding)];
    }

    /** Returns the problem with a bias of this type and the softmax of the configuration, as cuDNN's kernels are told. */
    AttentionProblem get(QkvLayout layout, Padding padding, boolean drops, BiasType biasType) {
        return (drops ? changedDropping : changed)[biasType.ordinal()][index(layout, padding)];
    }

    private static int index(QkvLayout layout, Padding padding) {
        return layout.ordinal() * PADDINGS + padding.ordinal();
    }

    /** Returns why TE does not compute {@code problem} over these sequences in eight bits, or null. */
    @Nullable
    String refusal(AttentionProblem problem, DType dtype, DType gradientType, Sequences sequences, Device device) {
        return refusal(problem, dtype, gradientType, sequences, 0, 0, device);
    }

    /**
     * Returns why TE does not compute {@code problem} over these sequences, or null. Of packed sequences it is asked about as many
     * tokens as it makes one plan for: the answer is then the same for most batches.
     *
     * @param biasSequences that have a bias of their own; 0 without one
     * @param biasHeads that have a bias of their own; 0 without one
     */
    @Nullable
    String refusal(
            AttentionProblem problem,
            DType dtype,
            DType gradientType,
            Sequences sequences,
            long biasSequences,
            long biasHeads,
            Device device) {
        Answer asked = question;
        asked.problem = problem;
        asked.dtype = dtype;
        asked.gradientType = gradientType;
        asked.device = device;
        asked.biasSequences = biasSequences;
        asked.biasHeads = biasHeads;
        asked.measure(sequences);
        for (Answer answer : answers) {
            if (answer.isTo(asked)) {
                return answer.refusal;
            }
        }
        String refusal = FusedAttention.refusal(problem, dtype, gradientType, sizes(asked), device);
        asked.refusal =
                refusal == null ? null : NAMED_ATTRIBUTE.matcher(refusal).replaceFirst("");
        question = answers[next];
        answers[next] = asked;
        next = (next + 1) % MOST;
        return asked.refusal;
    }

    private AttentionSizes sizes(Answer asked) {
        return new AttentionSizes(
                asked.batch,
                config.heads(),
                config.keyHeads(),
                config.headDim(),
                config.headDim(),
                asked.length,
                asked.keyLength,
                asked.tokens,
                asked.keyTokens,
                asked.biasSequences,
                asked.biasHeads);
    }
}
