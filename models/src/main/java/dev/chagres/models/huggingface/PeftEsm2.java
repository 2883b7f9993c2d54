package dev.chagres.models.huggingface;

import dev.chagres.io.SafetensorsEntry;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.CheckpointTensors.Found;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * A folder of PEFT with adapters of an ESM-2 in another folder, both checked.
 *
 * <p>Threading: the device's thread.
 */
final class PeftEsm2 implements AutoCloseable {
    private static final int MOST_LABELS = 1 << 24;

    private final Esm2Source base;
    private final PeftSource adapters;
    private final @Nullable Esm2ClassifierConfig classifier;

    private PeftEsm2(Esm2Source base, PeftSource adapters, @Nullable Esm2ClassifierConfig classifier) {
        this.base = base;
        this.adapters = adapters;
        this.classifier = classifier;
    }

    /** Opens and checks both folders. */
    static PeftEsm2 open(Path model, Path adapters) {
        PeftConfig fields = PeftConfig.read(adapters);
        return CheckpointWeights.orClosed(Esm2Source.open(model), base -> {
            if (base.architecture() == EsmArchitecture.NV_MASKED_LM) {
                throw CheckpointException.of(
                        model.resolve(CheckpointWeights.CONFIG),
                        "expected a model in the layout of transformers, whose modules adapters name, got one of"
                                + " NVIDIA's; convert it",
                        null);
            }
            return CheckpointWeights.orClosed(PeftSource.tensors(adapters), tensors -> {
                Esm2ClassifierConfig classifier = classifier(base, fields, tensors);
                PeftSource source = PeftSource.of(fields, tensors, PeftModules.of(base.config(), classifier));
                if (classifier != null
                        && base.architecture().beginsClassifiers()
                        && source.lora().trained().isEmpty()) {
                    throw fields.json()
                            .refused("modules_to_save", "classifier, for the model's folder has no such head");
                }
                return new PeftEsm2(base, source, classifier);
            });
        });
    }

    /** Of a masked-language model the adapters say what is classified, and their head how many classes there are. */
    private static @Nullable Esm2ClassifierConfig classifier(
            Esm2Source base, PeftConfig fields, CheckpointTensors tensors) {
        if (!base.architecture().beginsClassifiers()) {
            return base.classifier();
        }
        return switch (fields.json().text("task_type", "")) {
            case "SEQ_CLS" -> sequences(base, labels("classifier.out_proj", 1, tensors));
            case "TOKEN_CLS" -> new Esm2ClassifierConfig(base.config(), Task.TOKENS, labels("classifier", 2, tensors));
            default -> {
                if (base.architecture() == EsmArchitecture.BASE) {
                    throw fields.json()
                            .refused(
                                    "task_type", "SEQ_CLS or TOKEN_CLS, for the model's folder has no head of its own");
                }
                yield null;
            }
        };
    }

    /** As transformers goes by the labels where no file says what they mean: one is a number. */
    private static Esm2ClassifierConfig sequences(Esm2Source base, int labels) {
        Problem problem = labels == 1 ? Problem.REGRESSION : Problem.SINGLE_LABEL;
        return new Esm2ClassifierConfig(base.config(), Task.SEQUENCES, labels, problem);
    }

    private static int labels(String module, int least, CheckpointTensors tensors) {
        Found found = tensors.all().get(PeftModules.PREFIX + module + PeftModules.WEIGHT);
        SafetensorsEntry weight = found == null ? null : found.entry();
        if (weight == null
                || weight.sizes().length != 2
                || weight.sizes()[0] < least
                || weight.sizes()[0] > MOST_LABELS) {
            throw CheckpointException.ofTensor(
                    tensors.main(),
                    PeftModules.PREFIX + module + PeftModules.WEIGHT,
                    "expected a head of " + (least == 1 ? "a label" : "two labels") + " or more, got "
                            + (weight == null ? "none" : Arrays.toString(weight.sizes())));
        }
        return Math.toIntExact(weight.sizes()[0]);
    }

    /** Returns sizes and form. */
    Esm2Config config() {
        return base.config();
    }

    /** Returns what is classified; null where the head is that of the masked-language model. */
    @Nullable
    Esm2ClassifierConfig classifier() {
        return classifier;
    }

    LoraConfig lora() {
        return adapters.lora();
    }

    /** Says that the folders have another head. */
    CheckpointException refused(String expected) {
        return CheckpointException.of(
                adapters.path(),
                "expected adapters of " + expected + ", got those of " + (classifier == null ? "none" : "one"),
                null);
    }

    /** Copies the weights of the model and of the adapters into parameters, and waits. */
    void load(Parameters parameters) {
        loadBase(parameters);
        adapters.load(parameters);
    }

    /** Copies the weights of the model, to which the adapters' products are added, and those of the head into parameters without adapters. */
    void loadMerged(Parameters parameters) {
        loadBase(parameters);
        adapters.merge(parameters);
    }

    private void loadBase(Parameters parameters) {
        if (classifier != null && base.architecture().beginsClassifiers()) {
            base.loadEncoder(parameters);
        } else {
            base.load(parameters);
        }
    }

    @Override
    public void close() {
        adapters.close();
        base.close();
    }
}
