package dev.chagres.models.huggingface;

import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** The models of transformers that are read here, by the names that {@code architectures} has. */
enum EsmArchitecture {
    MASKED_LM("EsmForMaskedLM", null),
    /** With the names and the layout of NVIDIA's recipes. */
    NV_MASKED_LM("NVEsmForMaskedLM", null),
    /** Without a head. */
    BASE("EsmModel", null),
    TOKENS("EsmForTokenClassification", Task.TOKENS),
    SEQUENCES("EsmForSequenceClassification", Task.SEQUENCES);

    private final String className;
    private final @Nullable Task task;

    EsmArchitecture(String className, @Nullable Task task) {
        this.className = className;
        this.task = task;
    }

    String className() {
        return className;
    }

    /** Returns what a classifier classifies; null of another model. */
    @Nullable
    Task task() {
        return task;
    }

    /** Returns whether training a classifier may begin with it, whose own head it then has: it has the encoder, or one with another head. */
    boolean beginsClassifiers() {
        return this == MASKED_LM || this == BASE;
    }

    static EsmArchitecture of(Task task) {
        return task == Task.TOKENS ? TOKENS : SEQUENCES;
    }

    static List<String> classNames() {
        return Arrays.stream(values()).map(EsmArchitecture::className).toList();
    }

    /** Returns the one that a configuration names; a refusal of others. */
    static EsmArchitecture of(JsonObject config) {
        List<String> named = config.texts("architectures");
        return Arrays.stream(values())
                .filter(each -> named.contains(each.className))
                .findFirst()
                .orElseThrow(() -> config.refused("architectures", "one of " + classNames()));
    }
}
