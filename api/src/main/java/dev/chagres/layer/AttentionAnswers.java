package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.Sequences;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionSizes;
import dev.chagres.te.FusedAttention;
import org.jspecify.annotations.Nullable;

/**
 * What TE has said to the question whether it computes an attention in eight bits, for the last few problems and lengths: known
 * ones are found without garbage.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionAnswers {
    private static final int MOST = 16;

    private static final class Answer {
        private @Nullable AttentionProblem problem;
        private @Nullable DType gradientType;
        private @Nullable Device device;
        private long batch;
        private long length;
        private long keyLength;
        private @Nullable String refusal;

        boolean isTo(AttentionProblem asked, DType type, Sequences sequences, Device where) {
            return asked == problem
                    && type == gradientType
                    && where == device
                    && sequences.batch() == batch
                    && sequences.length() == length
                    && sequences.keys().length() == keyLength;
        }
    }

    private final AttentionConfig config;
    private final Answer[] answers = new Answer[MOST];
    private int next;

    AttentionAnswers(AttentionConfig config) {
        this.config = config;
        for (int i = 0; i < MOST; i++) {
            answers[i] = new Answer();
        }
    }

    /** Returns why TE does not compute {@code problem} over dense sequences in eight bits, or null. */
    @Nullable
    String refusal(AttentionProblem problem, DType dtype, DType gradientType, Sequences sequences, Device device) {
        for (Answer answer : answers) {
            if (answer.isTo(problem, gradientType, sequences, device)) {
                return answer.refusal;
            }
        }
        Answer answer = answers[next];
        next = (next + 1) % MOST;
        answer.problem = problem;
        answer.gradientType = gradientType;
        answer.device = device;
        answer.batch = sequences.batch();
        answer.length = sequences.length();
        answer.keyLength = sequences.keys().length();
        AttentionSizes sizes = AttentionSizes.of(answer.batch, answer.length, config.heads(), config.headDim())
                .withKeyHeads(config.keyHeads())
                .withKeys(answer.keyLength, answer.batch * answer.keyLength);
        answer.refusal = FusedAttention.refusal(problem, dtype, gradientType, sizes, device);
        return answer.refusal;
    }
}
