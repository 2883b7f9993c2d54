package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.DecoderLayout;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.EsmLayout;
import dev.chagres.models.huggingface.Models;
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
            "nv-esm-unpadded: of 33 rows; nvidia: NVLlamaForCausalLM or NVQwen3ForCausalLM,",
            "of decoders. Where the new model computes other numbers, a line on standard",
            "error says why. Of the folder of a run its last checkpoint is taken. Adapters of PEFT, of a classifier or a decoder, are",
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
            paramLabel = "transformers|nv-esm|nv-esm-unpadded|nvidia",
            description = "names, layout and GELU of the new folder (default: transformers)")
    private Layout layout = Layout.TRANSFORMERS;

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

    /** Values of {@code --layout}, of an ESM-2, of a decoder, or of both. */
    enum Layout {
        TRANSFORMERS(EsmLayout.TRANSFORMERS, DecoderLayout.TRANSFORMERS),
        NV_ESM(EsmLayout.NV_ESM, null),
        NV_ESM_UNPADDED(EsmLayout.NV_ESM_UNPADDED, null),
        NVIDIA(null, DecoderLayout.NVIDIA);

        private final @Nullable EsmLayout esm;
        private final @Nullable DecoderLayout decoder;

        Layout(@Nullable EsmLayout esm, @Nullable DecoderLayout decoder) {
            this.esm = esm;
            this.decoder = decoder;
        }
    }

    static final class OfLayout extends EnumOption<Layout> {
        OfLayout() {
            super(Layout.class);
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
        from = lastOfRun(from);
        if (Files.exists(from.resolve(ADAPTERS))) {
            merge();
            return;
        }
        if (base != null) {
            throw new IllegalArgumentException("--base: expected this beside --from with adapters of PEFT, got " + from
                    + ", which has no " + ADAPTERS);
        }
        Path model = Files.isDirectory(from) ? from : folderOf(from);
        try (Device device = Device.open()) {
            if (model != null && Models.isDecoder(model)) {
                decoder(device, model);
            } else {
                esm(device);
            }
        }
        out().println("wrote " + to + " (" + EnumOption.word(layout) + ", provider "
                + Provider.current().label() + ")");
    }

    /** Returns the last checkpoint of a run that keeps several in a folder, or {@code folder} itself. */
    private static Path lastOfRun(Path folder) {
        if (!Files.isDirectory(folder) || Files.exists(folder.resolve("config.json"))) {
            return folder;
        }
        try (CheckpointFolder run = CheckpointFolder.of(folder)) {
            return run.last().orElse(folder);
        }
    }

    private void esm(Device device) {
        EsmLayout form = layout.esm;
        if (form == null) {
            throw new IllegalArgumentException(
                    "--layout: expected transformers, nv-esm or nv-esm-unpadded of an ESM-2, got "
                            + EnumOption.word(layout));
        }
        boolean folder = Files.isDirectory(from);
        Path head = contactHead != null ? contactHead : folder ? from : null;
        SaveConfig config = SaveConfig.standard().withLayout(form);
        if (head != null && form == EsmLayout.TRANSFORMERS) {
            config = config.withUnusedFrom(head);
        }
        Esm2Config before = folder ? Esm2Checkpoint.config(from) : configOf(from);
        if (folder && weights == Weights.TRAINED) {
            Esm2Checkpoint.convert(device, from, to, config);
        } else {
            Esm2Config after = Esm2Checkpoint.inLayout(before, form);
            try (Esm2 model = new Esm2(
                    device, after, new ModelPlan(), plan -> Parameters.allocateZeros(device, plan, dtypeOf(from)))) {
                load(model.parameters());
                Esm2Checkpoint.save(model, to, config);
            }
        }
        for (String change : Esm2Checkpoint.changes(before, form)) {
            err().println("convert: the new model computes other numbers: " + change);
        }
    }

    private void decoder(Device device, Path model) {
        DecoderLayout form = layout.decoder;
        if (form == null) {
            throw new IllegalArgumentException(
                    "--layout: expected transformers or nvidia of a decoder, got " + EnumOption.word(layout));
        }
        if (contactHead != null) {
            throw new IllegalArgumentException("--contact-head: expected none beside a decoder, got " + contactHead);
        }
        boolean folder = Files.isDirectory(from) && weights == Weights.TRAINED;
        DecoderConfig config = DecoderCheckpoint.config(model);
        DType dtype = folder ? DecoderCheckpoint.dtype(from) : dtypeOf(from);
        try (Decoder made = folder
                ? DecoderCheckpoint.open(device, from, dtype)
                : new Decoder(device, config, new ModelPlan(), plan -> Parameters.allocateZeros(device, plan, dtype))) {
            if (!folder) {
                load(made.parameters());
            }
            DecoderCheckpoint.save(
                    made, to, SaveConfig.standard().withLayout(form).withTokenizerFrom(model));
        }
    }

    /** Loads the weights of a run, or their average. */
    private void load(Parameters parameters) {
        RunState.of(parameters).load(from);
        if (weights == Weights.AVERAGE) {
            loadAverage(parameters);
        }
    }

    /** Returns the folder that a saved run has begun with; null where it has begun with a size, or the folder is gone. */
    private static @Nullable Path folderOf(Path file) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            String name = opened.metadata().getOrDefault("model", "");
            return name.isEmpty() || !Files.isDirectory(Path.of(name)) ? null : Path.of(name);
        }
    }

    /** Writes a model whose weights are those of the base and of the adapters together. */
    private void merge() {
        if (layout != Layout.TRANSFORMERS || contactHead != null || weights != Weights.TRAINED) {
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
    private void loadAverage(Parameters parameters) {
        try (SafetensorsFile opened = SafetensorsFile.open(from)) {
            Map<String, SafetensorsEntry> entries = opened.entries();
            if (entries.keySet().stream().noneMatch(name -> name.endsWith(AVERAGE))) {
                throw new CommandFailure(
                        "--weights: expected a run of train --ema, which keeps an average, got " + from);
            }
            RunState.of(parameters).loadFrom(spec -> {
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
