package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.EsmLayout;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.io.PrintStream;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/**
 * Makes a folder of Hugging Face of what {@code train --save} has written, of a folder in another layout, or of adapters and their model.
 *
 * <p>Exit statuses: 0 done; 1 a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "convert",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Makes a folder of Hugging Face of a saved run, or of a folder in another layout.",
        footer = {
            "",
            "transformers: EsmForMaskedLM, exact GELU. nv-esm: NVEsmForMaskedLM of NVIDIA's",
            "recipes, with the GELU by tanh in its layers and a vocabulary of 64 rows;",
            "nv-esm-unpadded: of 33 rows. Where the new model computes other numbers, a line",
            "on standard error says why. Adapters of PEFT, of a classifier or a decoder, are",
            "added to the weights of their model.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Convert extends ProteinCommand {
    /** What the name of a weight's average ends with. */
    private static final String AVERAGE = ".ema";

    private static final String ADAPTERS = "adapter_config.json";

    @Option(
            names = "--from",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER|FILE",
            description =
                    "a folder of Hugging Face, a file that train --save has written, or a folder of PEFT, whose adapters"
                            + " are merged into their model")
    private Path from = Path.of("");

    @Option(
            names = "--base",
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description = "of adapters in --from: the model that they are for (default: that which they name)")
    private @Nullable Path base;

    @Option(
            names = "--to",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description = "the folder to write, which does not exist yet, or is empty")
    private Path to = Path.of("");

    @Option(
            names = "--layout",
            converter = OfLayout.class,
            paramLabel = "transformers|nv-esm|nv-esm-unpadded",
            description = "names, layout and GELU of the new folder (default: transformers)")
    private EsmLayout layout = EsmLayout.TRANSFORMERS;

    @Option(
            names = "--contact-head",
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description =
                    "copy the contact head of this folder of the same sizes (default: that of --from, if it has one)")
    private @Nullable Path contactHead;

    @Option(
            names = "--weights",
            converter = OfWeights.class,
            paramLabel = "trained|average",
            description = "of a file or checkpoint of train --ema: the weights, or their average (default: trained)")
    private Weights weights = Weights.TRAINED;

    /** Which weights of a run are written. */
    enum Weights {
        TRAINED,
        AVERAGE
    }

    static final class OfWeights extends EnumOption<Weights> {
        OfWeights() {
            super(Weights.class);
        }
    }

    static final class OfLayout extends EnumOption<EsmLayout> {
        OfLayout() {
            super(EsmLayout.class);
        }
    }

    Convert(PrintStream out, PrintStream err) {
        super(out, err);
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new Convert(out, err), out, err, arguments);
    }

    @Override
    void run() {
        FileChecks.requireName("--from", from);
        FileChecks.requireName("--to", to);
        FileChecks.requireDifferent("--to", to, "--from", from);
        boolean folder = Files.isDirectory(from);
        if (Files.exists(from.resolve(ADAPTERS))) {
            merge();
            return;
        }
        if (base != null) {
            throw new IllegalArgumentException("--base: expected this beside --from with adapters of PEFT, got " + from
                    + ", which has no " + ADAPTERS);
        }
        Path head = contactHead != null ? contactHead : folder ? from : null;
        SaveConfig config = SaveConfig.standard().withLayout(layout);
        if (head != null && layout == EsmLayout.TRANSFORMERS) {
            config = config.withUnusedFrom(head);
        }
        Esm2Config before = folder ? Esm2Checkpoint.config(from) : configOf(from);
        try (Device device = Device.open()) {
            if (folder && weights == Weights.TRAINED) {
                Esm2Checkpoint.convert(device, from, to, config);
            } else {
                Esm2Config after = Esm2Checkpoint.inLayout(before, layout);
                try (Esm2 model = new Esm2(
                        device,
                        after,
                        new ModelPlan(),
                        plan -> Parameters.allocateZeros(device, plan, dtypeOf(from)))) {
                    RunState.of(model.parameters()).load(from);
                    if (weights == Weights.AVERAGE) {
                        loadAverage(model);
                    }
                    Esm2Checkpoint.save(model, to, config);
                }
            }
        }
        for (String change : Esm2Checkpoint.changes(before, layout)) {
            err().println("convert: the new model computes other numbers: " + change);
        }
        out().println("wrote " + to + " (" + EnumOption.word(layout) + ", provider "
                + Provider.current().label() + ")");
    }

    /** Writes a model whose weights are those of the base and of the adapters together. */
    private void merge() {
        if (layout != EsmLayout.TRANSFORMERS || contactHead != null || weights != Weights.TRAINED) {
            throw new IllegalArgumentException(
                    "--from: expected no --layout, --contact-head and --weights beside adapters of PEFT, got some");
        }
        Path model = base != null ? base : PeftAdapters.base(from).orElse(null);
        if (model == null || !Files.isDirectory(model)) {
            throw new CommandFailure("--base: expected the folder of the model that the adapters are for, got "
                    + (model == null ? "none, and none in " + from.resolve(ADAPTERS) : model.toString()));
        }
        FileChecks.requireDifferent("--to", to, "--base", model);
        try (Device device = Device.open()) {
            PeftAdapters.merge(device, model, from, to);
        }
        out().println("wrote " + to + " (" + model + " and " + from + " merged, provider "
                + Provider.current().label() + ")");
    }

    /** Frozen weights have no average. */
    private void loadAverage(Esm2 model) {
        try (SafetensorsFile opened = SafetensorsFile.open(from)) {
            Map<String, SafetensorsEntry> entries = opened.entries();
            if (entries.keySet().stream().noneMatch(name -> name.endsWith(AVERAGE))) {
                throw new CommandFailure(
                        "--weights: expected a run of train --ema, which keeps an average, got " + from);
            }
            RunState.of(model.parameters()).loadFrom(spec -> {
                SafetensorsEntry entry = entries.get(spec.name() + AVERAGE);
                return entry == null ? null : new Average(spec, entry);
            });
        }
    }

    /** An average, in the type of the weight. */
    private record Average(TensorSpec spec, SafetensorsEntry entry) implements TensorSource {
        @Override
        public void copyTo(long offset, MemorySegment target) {
            entry.copyTo(spec.dtype(), offset, target);
        }
    }

    /** Returns sizes and form of the model of a saved run. */
    private static Esm2Config configOf(Path file) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            Map<String, String> texts = opened.metadata();
            String name = texts.getOrDefault("model", "");
            Optional<Esm2Size> size = Arrays.stream(Esm2Size.values())
                    .filter(one -> one.label().equals(name))
                    .findFirst();
            if (size.isPresent()) {
                boolean published = texts.getOrDefault("form", "nvidia").equals("published");
                return Esm2Config.of(size.get(), 1026).withForm(published ? Esm2Form.published() : Esm2Form.nvidia());
            }
            if (name.isEmpty() || !Files.isDirectory(Path.of(name))) {
                throw new CommandFailure("--from: " + file
                        + ": expected a file that train --save has written, whose model is a size or a folder that is there,"
                        + " got " + (name.isEmpty() ? "one without \"model\"" : name));
            }
            return Esm2Checkpoint.config(Path.of(name));
        }
    }

    private static DType dtypeOf(Path file) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            return opened.entry("embedding.weight").dtype();
        }
    }
}
