package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.internal.memory.DeviceState;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Caches TE's last answers whether it takes a problem, for one device: TE builds a cuDNN plan for each answer.
 *
 * <p>Threading: the device's thread.
 */
final class FusedAttentionAnswers implements AutoCloseable {
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

    @Override
    public void close() {
        answers.clear();
    }
}
