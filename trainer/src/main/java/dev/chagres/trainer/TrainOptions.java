package dev.chagres.trainer;

import dev.chagres.batch.BatchShape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.text.TextConfig;
import dev.chagres.models.text.TextSource;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.trainer.SavingPlan.Recipes;
import dev.chagres.trainer.TrainingPlan.Start;
import dev.chagres.trainer.command.FastaOptions;
import dev.chagres.trainer.command.FileChecks;
import dev.chagres.trainer.plan.ProfileOptions;
import java.io.File;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** The command's options; those left out get the platform's defaults in {@link #plan}. */
final class TrainOptions {
    private static final int GPU_TOKENS = 16_384;
    private static final int CPU_TOKENS = 2_048;
    private static final int DEFAULT_STEPS = 200;

    /** Values of {@code --provider}. */
    enum ProviderChoice {
        AUTO,
        CUDA,
        REFERENCE;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    @Option(
            names = "--model",
            paramLabel = "SIZE|FOLDER",
            description =
                    "a new model of size tiny, 8M, 35M, 150M, 650M, 3B or 15B, or the ESM-2, or with --text the decoder, in a folder"
                            + " of Hugging Face, whose training goes on (default: tiny on a CPU, 8M on a GPU)")
    private @Nullable String model;

    @Option(
            names = "--form",
            converter = OptionWords.OfForm.class,
            paramLabel = "published|nvidia",
            description =
                    "of a new model: the exact GELU and token dropout of the published checkpoints, which transformers"
                            + " computes, too; or the GELU by tanh of NVIDIA's recipes, without token dropout (default:"
                            + " published)")
    private TrainingPlan.@Nullable ModelForm form;

    @Mixin
    private final FastaOptions fasta = new FastaOptions();

    @Option(
            names = "--text",
            arity = "1..*",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description =
                    "train the decoder in the folder of --model on text: .jsonl and .parquet with text, or prompt and completion, or messages,"
                            + " of which completions and answers alone are learned; any other file is one text (default: none)")
    private List<Path> texts = List.of();

    /** Logits of so many tokens are about 260 MB in 16 bits with the vocabulary of Llama 3. */
    private static final int LOSS_TOKENS = 1024;

    @Option(
            names = "--loss-tokens",
            paramLabel = "N",
            description =
                    "with --text: logits of so many tokens are in memory at once, and backward computes them again; 0: all, which"
                            + " are kept (default: 1024)")
    private @Nullable Integer lossTokens;

    @Option(names = "--steps", paramLabel = "N", description = "updates to make (default: 200)")
    private int steps = DEFAULT_STEPS;

    @Mixin
    private final BatchOptions batches = new BatchOptions();

    @Mixin
    private final RankOptions ranks = new RankOptions();

    @Option(
            names = "--recipe",
            converter = OptionWords.OfRecipe.class,
            paramLabel = "bf16|fp16|fp32|fp8-delayed|fp8-delayed-fast|fp8-current|fp8-block",
            description = "precision of the layers (default: bf16 on a GPU, fp32 on a CPU)")
    private @Nullable TrainingRecipe recipe;

    @Option(
            names = "--recompute",
            converter = OptionWords.OfRecomputation.class,
            paramLabel = "none|activation|norms|layers",
            description =
                    "what backward recomputes, so that layers save less; losses have the same bits, but for none with --form nvidia --recipe bf16. activation: its"
                            + " output; norms: also the outputs of the layers' norms, which layers with --recipe fp8-... do not save anyway; layers: all"
                            + " but each layer's input (default: activation for ESM-2, none for a decoder)")
    private @Nullable Recomputation recomputation;

    @Mixin
    private final EnqueuingOptions enqueuing = new EnqueuingOptions();

    @Mixin
    private final OptimizerOptions updates = new OptimizerOptions();

    @Mixin
    private final ScheduleOptions schedule = new ScheduleOptions();

    @Option(
            names = "--seed",
            paramLabel = "N",
            description = "data order, masks and first weights follow from it (default: 42)")
    private long seed = 42;

    @Option(
            names = "--provider",
            converter = OptionWords.OfProvider.class,
            paramLabel = "NAME",
            description = "cuda, reference or auto: cuda where there is an NVIDIA driver (default: auto)")
    private @Nullable ProviderChoice provider;

    @Option(
            names = "--report",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description = "write JSON Lines: the run, then each step")
    private @Nullable Path report;

    @Option(
            names = "--plot",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.png",
            description = "draw the loss")
    private @Nullable Path plot;

    @Mixin
    private final SavingPlan.Options saving = new SavingPlan.Options();

    @Mixin
    private final EvaluationPlan.Options evaluation = new EvaluationPlan.Options();

    @Mixin
    private final ProfileOptions profile = new ProfileOptions();

    /** Returns the provider that was asked for, null when the system property is to decide. */
    @Nullable
    String provider() {
        return provider == null ? null : provider.toString();
    }

    /**
     * Checks what does not depend on the platform.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check() {
        requireAtLeast("--steps", steps, 1);
        batches.check();
        ranks.check();
        batches.check(ranks);
        profile.check();
        updates.check(recomputation, ranks.layout().count());
        enqueuing.check(ranks, updates);
        schedule.check(steps);
        fasta.check();
        checkTexts();
        FileChecks.requireName("--report", report);
        FileChecks.requirePicture("--plot", plot);
        saving.check();
        evaluation.check();
        checkFiles();
        batches.checkContext();
        enqueuing.checkStatistics(recipe, report);
        if (ranks.count() == 1) { // Of several, plan(…) first looks whether they have devices.
            batches.checkShape(ranks);
        }
    }

    private void checkTexts() {
        if (texts.isEmpty()) {
            if (!evaluation.texts().isEmpty()) {
                throw new IllegalArgumentException("--eval-text: expected --text beside it, got none");
            }
            if (lossTokens != null) {
                throw new IllegalArgumentException("--loss-tokens: expected --text beside it, got none");
            }
            return;
        }
        if (fasta.areGiven()) {
            throw new IllegalArgumentException("--fasta: expected none beside --text, got some");
        }
        if (evaluation.isOfProteins()) {
            throw new IllegalArgumentException("--eval-fasta: expected none beside --text, got one");
        }
        if (lossTokens != null) {
            requireAtLeast("--loss-tokens", lossTokens, 0);
        }
        if (form != null || model == null || !new File(model).isDirectory()) {
            throw new IllegalArgumentException(
                    (form != null ? "--form: expected none" : "--model: expected the folder of a decoder")
                            + " beside --text, got "
                            + (form != null ? form.toString() : model == null ? "none" : ForeignText.plain(model)));
        }
        texts.forEach(file -> FileChecks.requireName("--text", file));
    }

    /** A file that an option names; null for none. */
    private record Named(String option, @Nullable Path file) {}

    /** Refuses to write a file over another one that is written or read, or over the one that this other is until it is whole. */
    private void checkFiles() {
        List<Named> written =
                List.of(new Named("--save", saving.save()), new Named("--plot", plot), new Named("--report", report));
        List<Named> all = new ArrayList<>(written);
        all.add(new Named("--eval-fasta", evaluation.fasta()));
        texts.forEach(file -> all.add(new Named("--text", file)));
        evaluation.texts().forEach(file -> all.add(new Named("--eval-text", file)));
        Path resumed = saving.resume();
        for (int i = 0; i < written.size(); i++) {
            Named one = written.get(i);
            fasta.requireOthers(one.option, one.file);
            for (int j = 0; j < all.size(); j++) {
                Named other = all.get(j);
                if (j > i) {
                    FileChecks.requireDifferent(one.option, one.file, other.option, other.file);
                }
                if (j != i) {
                    FileChecks.requireOtherPart(one.option, one.file, other.option, other.file);
                }
            }
            if (i > 0) { // A run may go on from the file that it saves to.
                FileChecks.requireDifferent(one.option, one.file, "--resume", resumed);
            }
            FileChecks.requireOtherPart(one.option, one.file, "--resume", resumed);
        }
    }

    /**
     * Checks what depends on the device.
     *
     * @throws IllegalArgumentException when an option does not fit it; the text names it
     */
    void requireDevice(int multiprocessors) {
        enqueuing.requireBelow(multiprocessors);
    }

    /**
     * Returns the plan, with the platform's defaults where an option was left out.
     *
     * @param devices how many the platform has
     * @throws IllegalArgumentException when an option does not fit the platform; the text names it
     */
    TrainingPlan plan(boolean gpu, int devices) {
        requireDevices(gpu, devices);
        boolean ofText = !texts.isEmpty();
        Start start = ofText ? decoder(Path.of(String.valueOf(model))) : start(gpu);
        ranks.layout().requireHeads(ranks.sharingOption(), start);
        ModelSetup.Enqueuing enqueued = enqueuing.of(gpu, ranks, updates);
        ranks.layout().requireStages(ranks.sharingOption(), start, enqueued.castStatistics());
        ranks.requireLayout(batches.layout());
        TrainingRecipe precision = recipe != null ? recipe : gpu ? TrainingRecipe.BF16 : TrainingRecipe.FP32;
        float usualRate = ofText ? 2e-5f : start.name().equals(Esm2Size.TINY.label()) ? 4e-3f : 4e-4f;
        BatchShape shape = batches.shape(gpu ? GPU_TOKENS : CPU_TOKENS, ranks);
        TrainingData data;
        EvaluationPlan evaluated;
        if (start.model() instanceof StartModel.Decoders decoders) {
            TextSource source = new TextSource(
                    texts,
                    decoders.folder(),
                    new TextConfig(
                            shape.context(),
                            decoders.config().tokens().ends().stream().findFirst(),
                            seed));
            data = new TrainingData.Texts(evaluation.training(source));
            evaluated = evaluation.plan(source);
        } else {
            FastaSource all = fasta.trainingSource(FastaSource.shipped());
            data = new TrainingData.Proteins(evaluation.training(all));
            evaluated = evaluation.plan(all, fasta);
        }
        return new TrainingPlan(
                start,
                data,
                shape,
                batches.order(),
                precision,
                recomputation != null ? recomputation : start.model().recomputation(),
                updates.activations(),
                ranks.layout(),
                enqueued,
                steps,
                schedule.of(steps, updates.rate(usualRate), updates.decay()),
                updates.config(),
                updates.productGradients(precision),
                seed,
                saving.plan(recipe != null ? Recipes.SAME_WEIGHTS : Recipes.SAME, schedule.defaults()),
                ranks.isSilent() ? null : report,
                ranks.isSilent() ? null : plot,
                ranks.isSilent() ? evaluated.silent() : evaluated,
                profile.wanted(ranks.isSilent()));
    }

    private Start decoder(Path folder) {
        int together = lossTokens == null ? LOSS_TOKENS : lossTokens;
        return Start.ofDecoder(folder, DecoderCheckpoint.config(folder).withLossTokens(together));
    }

    private Start start(boolean gpu) {
        String name = model != null ? model : (gpu ? Esm2Size.M8 : Esm2Size.TINY).label();
        Esm2Size size = Arrays.stream(Esm2Size.values())
                .filter(one -> one.label().equalsIgnoreCase(name))
                .findFirst()
                .orElse(null);
        if (size != null) {
            return Start.of(size, form == null ? TrainingPlan.ModelForm.PUBLISHED : form);
        }
        if (!new File(name).isDirectory()) {
            throw new IllegalArgumentException("--model: expected one of "
                    + Arrays.stream(Esm2Size.values()).map(Esm2Size::label).collect(Collectors.joining(", "))
                    + ", or a folder, got " + (name.isEmpty() ? "nothing" : ForeignText.plain(name)));
        }
        if (form != null) {
            throw new IllegalArgumentException(
                    "--form: expected none beside --model FOLDER, whose form it is, got " + form);
        }
        return Start.of(Path.of(name));
    }

    /** Returns whether this process is one of several ranks, and another one tells of the run. */
    boolean isSilent() {
        return ranks.isSilent();
    }

    /** Says that a launcher is about to start so many processes with these options. */
    void toLaunch(int processes) {
        ranks.toLaunch(processes);
    }

    /** Returns which device of this host is this process's. */
    int device() {
        return ranks.device();
    }

    private void requireDevices(boolean gpu, int devices) {
        // Processes that others have started may be on several hosts.
        if (ranks.count() > devices && (!ranks.areProcesses() || ranks.isToLaunch())) {
            throw new IllegalArgumentException(ranks.countOption() + ": expected 1 to " + devices
                    + ", for each rank needs a device of its own and "
                    + (gpu ? "this process sees " + devices + " GPUs" : "the CPU reference has " + devices)
                    + ", got " + ranks.count()
                    + (gpu ? "" : "; the variable CHAGRES_REFERENCE_DEVICES=" + ranks.count() + " gives it more"));
        }
    }

    static void requireAtLeast(String option, int value, int least) {
        if (value < least) {
            throw new IllegalArgumentException(option + ": expected at least " + least + ", got " + value);
        }
    }
}
