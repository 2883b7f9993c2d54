package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameters;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * A folder of PEFT with adapters of an ESM-2 in another folder, checked: for each parameter that they have the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class PeftSource implements AutoCloseable {
    static final String TENSORS = "adapter_model.safetensors";
    private static final Set<DType> FLOATS = Set.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    private static final int MOST_LABELS = 1 << 24;

    private final Esm2Source base;
    private final Path path;
    private final SafetensorsFile file;
    private final @Nullable Esm2ClassifierConfig classifier;
    private final LoraConfig lora;
    private final List<Target> targets;

    private PeftSource(Esm2Source base, PeftConfig fields, Path path, SafetensorsFile file) {
        this.base = base;
        this.path = path;
        this.file = file;
        classifier = classifier(fields);
        PeftModules modules = new PeftModules(base.config(), classifier);
        lora = fields.lora(modules);
        if (classifier != null
                && base.architecture().beginsClassifiers()
                && lora.trained().isEmpty()) {
            throw fields.json().refused("modules_to_save", "classifier, for the model's folder has no such head");
        }
        targets = modules.tensors(lora);
        check();
    }

    /** Opens and checks both folders. */
    static PeftSource open(Path model, Path adapters) {
        PeftConfig fields = PeftConfig.read(adapters);
        Esm2Source base = Esm2Source.open(model);
        try {
            if (base.architecture() == EsmArchitecture.NV_MASKED_LM) {
                throw CheckpointException.of(
                        model.resolve(CheckpointWeights.CONFIG),
                        "expected a model in the layout of transformers, whose modules adapters name, got one of"
                                + " NVIDIA's; convert it",
                        null);
            }
            Path path = adapters.resolve(TENSORS);
            SafetensorsFile file = SafetensorsFile.open(path);
            try {
                return new PeftSource(base, fields, path, file);
            } catch (RuntimeException | Error failure) {
                file.close();
                throw failure;
            }
        } catch (RuntimeException | Error failure) {
            base.close();
            throw failure;
        }
    }

    /** Of a masked-language model the adapters say what is classified, and their head how many classes there are. */
    private @Nullable Esm2ClassifierConfig classifier(PeftConfig fields) {
        if (!base.architecture().beginsClassifiers()) {
            return base.classifier();
        }
        return switch (fields.json().text("task_type", "")) {
            case "SEQ_CLS" -> sequences(labels("classifier.out_proj", 1));
            case "TOKEN_CLS" -> new Esm2ClassifierConfig(base.config(), Task.TOKENS, labels("classifier", 2));
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
    private Esm2ClassifierConfig sequences(int labels) {
        Problem problem = labels == 1 ? Problem.REGRESSION : Problem.SINGLE_LABEL;
        return new Esm2ClassifierConfig(base.config(), Task.SEQUENCES, labels, problem);
    }

    private int labels(String module, int least) {
        SafetensorsEntry weight = file.entries().get(PeftModules.PREFIX + module + PeftModules.WEIGHT);
        if (weight == null
                || weight.sizes().length != 2
                || weight.sizes()[0] < least
                || weight.sizes()[0] > MOST_LABELS) {
            throw CheckpointException.ofTensor(
                    path,
                    PeftModules.PREFIX + module + PeftModules.WEIGHT,
                    "expected a head of " + (least == 1 ? "a label" : "two labels") + " or more, got "
                            + (weight == null ? "none" : Arrays.toString(weight.sizes())));
        }
        return Math.toIntExact(weight.sizes()[0]);
    }

    private void check() {
        Set<String> used = new HashSet<>();
        for (Target target : targets) {
            for (Part part : target.parts()) {
                SafetensorsEntry entry = file.entries().get(part.tensor());
                boolean fits = entry != null
                        && entry.type().dtype().filter(FLOATS::contains).isPresent()
                        && Arrays.equals(entry.sizes(), part.sizes());
                if (!fits) {
                    throw CheckpointException.ofTensor(
                            path,
                            part.tensor(),
                            "expected F32, F16 or BF16 " + Arrays.toString(part.sizes()) + ", as " + PeftConfig.FILE
                                    + " says, got "
                                    + (entry == null ? "none" : entry.type() + " " + Arrays.toString(entry.sizes())));
                }
                used.add(part.tensor());
            }
        }
        for (String tensor : file.entries().keySet()) {
            if (!used.contains(tensor)) {
                throw CheckpointException.ofTensor(
                        path, tensor, "expected tensors of " + PeftConfig.FILE + "'s target_modules, got another one");
            }
        }
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
        return lora;
    }

    /** Says that the folders have another head. */
    CheckpointException refused(String expected) {
        return CheckpointException.of(
                path,
                "expected adapters of " + expected + ", got those of " + (classifier == null ? "none" : "one"),
                null);
    }

    /** Copies the weights of the model and of the adapters into parameters, and waits. */
    void load(Parameters parameters) {
        loadBase(parameters);
        targets.forEach(target -> load(target, parameters));
        parameters.changed();
    }

    private void load(Target target, Parameters parameters) {
        Tensor weight = parameters.get(target.parameter()).weight();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(weight.byteSize(), Long.BYTES);
            long offset = 0;
            for (Part part : target.parts()) {
                long bytes = part.count() * weight.dtype().byteSize();
                SafetensorsEntry entry = file.entry(part.tensor());
                entry.verify();
                entry.copyTo(weight.dtype(), 0, host.asSlice(offset, bytes));
                offset += bytes;
            }
            weight.copyFrom(parameters.scope().stream(), host);
            parameters.scope().stream().synchronize();
        }
    }

    private void loadBase(Parameters parameters) {
        if (classifier != null && base.architecture().beginsClassifiers()) {
            base.loadEncoder(parameters);
        } else {
            base.load(parameters);
        }
    }

    /**
     * Copies the weights of the model, to which the adapters' products are added, and those of the head into parameters without adapters. Sums
     * are FP32, and are rounded once.
     */
    void loadMerged(Parameters parameters) {
        loadBase(parameters);
        for (Target target : targets) {
            if (!target.parameter().endsWith(PeftModules.B)) {
                continue;
            }
            String product = target.parameter().substring(0, target.parameter().length() - PeftModules.B.length());
            Tensor weight = parameters.get(product + PeftModules.WEIGHT).weight();
            float[] sum = weight.toFloats(parameters.scope().stream());
            for (Part part : target.parts()) {
                add(part.tensor(), part.sizes()[0], base.firstRow(product, module(part.tensor())), sum);
            }
            weight.set(parameters.scope().stream(), sum);
        }
        targets.stream()
                .filter(target -> !PeftModules.isAdapter(target.parameter()))
                .forEach(target -> load(target, parameters));
        parameters.changed();
    }

    /** Returns the module of transformers that a tensor of adapters belongs to. */
    private static String module(String tensor) {
        return tensor.substring(
                PeftModules.PREFIX.length(), tensor.length() - PeftModules.B.length() - PeftModules.WEIGHT.length());
    }

    /** Adds {@code factor B A} to rows from {@code first} on. */
    private void add(String tensor, long rows, long first, float[] sum) {
        float[] b = floats(tensor);
        float[] a = floats(tensor.replace(PeftModules.B + PeftModules.WEIGHT, PeftModules.A + PeftModules.WEIGHT));
        int rank = lora.rank();
        int columns = a.length / rank;
        for (int i = 0; i < rows; i++) {
            int at = Math.toIntExact((first + i) * columns);
            for (int k = 0; k < rank; k++) {
                float factor = lora.factor() * b[i * rank + k];
                for (int j = 0; j < columns; j++) {
                    sum[at + j] += factor * a[k * columns + j];
                }
            }
        }
    }

    private float[] floats(String tensor) {
        SafetensorsEntry entry = file.entry(tensor);
        entry.verify();
        return CheckpointWeights.floats(entry);
    }

    @Override
    public void close() {
        file.close();
        base.close();
    }
}
