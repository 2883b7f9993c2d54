package dev.chagres.trainer.finetune;

import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.checkpoint.RunState;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.UnknownLetters;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.FastaOptions;
import dev.chagres.trainer.command.TargetScale;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** The options of {@code finetune} about proteins and their labels, and what an ESM-2 learns by them. */
final class ProteinOptions {
    @Option(
            names = "--task",
            converter = Predicted.Words.class,
            paramLabel = "NAME",
            description = "classification, multi-label or regression of sequences; tokens: classification of residues")
    private @Nullable Predicted predicted;

    @Option(
            names = "--standardize",
            description = "of regression: learn (label - mean) / deviation; the saved folder's targets.json has both")
    private boolean standardize;

    @Option(names = "--train", paramLabel = "FILE", description = "CSV or FASTA to train on")
    private @Nullable Path train;

    @Option(names = "--train-labels", paramLabel = "FILE", description = "labels of a FASTA file, one a line")
    private @Nullable Path trainLabels;

    @Option(names = "--eval", paramLabel = "FILE", description = "CSV or FASTA to evaluate on")
    private @Nullable Path eval;

    @Option(names = "--eval-labels", paramLabel = "FILE", description = "labels of a FASTA file, one a line")
    private @Nullable Path evalLabels;

    @Option(
            names = "--frozen",
            paramLabel = "SPEC",
            description = "trunk: train the head alone; last-n=2: train the last two layers and the head")
    private @Nullable String frozen;

    @Option(
            names = "--unknown",
            converter = FastaOptions.OfUnknown.class,
            paramLabel = "refuse|unk|skip",
            description =
                    "what becomes of letters that the vocabulary lacks: the file is refused, they become <unk>, or their sequences are"
                            + " left out, and so are their labels (default: refuse)")
    private UnknownLetters unknown = UnknownLetters.REFUSE;

    /** Returns the first of these options that was given, null where none was. */
    @Nullable
    String given() {
        Map<String, Boolean> all = new LinkedHashMap<>();
        all.put("--task", predicted != null);
        all.put("--standardize", standardize);
        all.put("--train", train != null);
        all.put("--train-labels", trainLabels != null);
        all.put("--eval", eval != null);
        all.put("--eval-labels", evalLabels != null);
        all.put("--frozen", frozen != null);
        all.put("--unknown", unknown != UnknownLetters.REFUSE);
        return all.entrySet().stream()
                .filter(Map.Entry::getValue)
                .map(Map.Entry::getKey)
                .findFirst()
                .orElse(null);
    }

    private static <T> T required(String option, @Nullable T value) {
        if (value == null) {
            throw new IllegalArgumentException(option
                    + ": expected this beside --model of an ESM-2, or --text beside that of a decoder, got none");
        }
        return value;
    }

    /** Checks what depends on no file. */
    void check(@Nullable LoraConfig lora, TuningOptions options) {
        Predicted task = required("--task", predicted);
        required("--train", train);
        if (options.heldOut("--eval", eval != null) == null && eval == null) {
            throw new IllegalArgumentException("--eval: expected a file to evaluate on, or --eval-fraction 0.1, which"
                    + " holds out that part of --train, got none");
        }
        if (lora != null && frozen != null) {
            throw new IllegalArgumentException("--frozen: expected none beside --lora, which freezes all but the head");
        }
        if (standardize && task != Predicted.REGRESSION) {
            throw new IllegalArgumentException(
                    "--standardize: expected --task regression, got " + EnumOption.word(task));
        }
    }

    /** Reads the files. */
    Tuned tuned(Path model, @Nullable LoraConfig lora, TuningOptions options) {
        Predicted task = required("--task", predicted);
        LabelledProteins all = LabelledProteins.read("--train", required("--train", train), trainLabels, task, unknown);
        HeldOut heldOut = options.heldOut("--eval", eval != null);
        LabelledProteins training = heldOut == null ? all : all.without(heldOut);
        LabelledProteins held = heldOut == null
                ? LabelledProteins.read("--eval", required("--eval", eval), evalLabels, task, unknown)
                : all.only(heldOut);
        TaskLabels labels = labels(model, task, training, all);
        options.ensureHas(labels.predictions().metrics(), "--task " + EnumOption.word(task));
        LabelledSequences trained = training.labelled("--train", labels);
        LabelledSequences evaluated = held.labelled("--eval", labels);
        BatchShape shape = options.shape(Math.max(training.longest(), held.longest()));
        LoraConfig adapters = lora == null
                ? null
                : LoraOption.of(lora, List.of("query", "key", "value", "projection", "fc1", "fc2"), "query", "value")
                        .withTrained("classifier");
        Esm2Config encoder = Esm2Checkpoint.config(model);
        IntFunction<TrainedModel.Factory> ofContext = context -> {
            var config =
                    new Esm2ClassifierConfig(encoder.withContext(context), task.task(), labels.count(), task.problem());
            return chosen(config, labels.factory(config), adapters);
        };
        String told = training + ", " + held + ", "
                + (task == Predicted.REGRESSION ? "a number each" : labels.count() + " labels");
        return new Classifier(
                model,
                told,
                adapters,
                ofContext.apply(shape.context()),
                ofContext.apply(encoder.context()),
                shape,
                () -> trained.epochs(options.epochs, options.seed),
                evaluated::once,
                labels);
    }

    /** Returns what labels say, as a head in the folder has learned it where there is one. */
    private TaskLabels labels(Path model, Predicted task, LabelledProteins training, LabelledProteins all) {
        List<String> own = Esm2Checkpoint.labels(model);
        if (!own.isEmpty()) {
            Predicted theirs = Predicted.of(Esm2Checkpoint.classifierConfig(model));
            if (theirs != task) {
                throw new DataException("--task: expected that of the classifier in " + model + ", "
                        + EnumOption.word(theirs) + ", got " + EnumOption.word(task));
            }
        }
        return task == Predicted.REGRESSION
                ? new NumberLabels(scale(model, own, training))
                : new ClassLabels(task, own, all);
    }

    private TargetScale scale(Path model, List<String> own, LabelledProteins training) {
        if (own.isEmpty()) {
            return standardize
                    ? TargetScale.of(training.rows().stream()
                            .mapToDouble(row -> NumberLabels.number("--train", row))
                            .toArray())
                    : TargetScale.PLAIN;
        }
        if (own.size() != 1) {
            throw new DataException("--model: expected a regression of one number, got one of " + own.size());
        }
        TargetScale theirs = TargetScale.read(model);
        if (standardize && theirs.equals(TargetScale.PLAIN)) {
            throw new DataException("--standardize: expected " + TargetScale.FILE + " in " + model
                    + ", whose head predicts numbers, got none; leave the option out");
        }
        return theirs;
    }

    private TrainedModel.Factory chosen(
            Esm2ClassifierConfig config, TrainedModel.Factory factory, @Nullable LoraConfig adapters) {
        if (adapters != null) {
            return factory.adapted(adapters);
        }
        String choice = frozen;
        if (choice == null) {
            return factory;
        }
        if (choice.equals("trunk")) {
            return factory.training(config.lastLayers(0));
        }
        if (!choice.matches("last-n=\\d{1,5}")) {
            throw new IllegalArgumentException(
                    "--frozen: expected trunk, or last-n=2 or another number, got " + ForeignText.plain(choice));
        }
        int count = Integer.parseInt(choice.substring("last-n=".length()));
        if (count > config.encoder().layers()) {
            throw new IllegalArgumentException(
                    "--frozen: expected last-n of at most " + config.encoder().layers() + " layers, got " + count);
        }
        return factory.training(config.lastLayers(count));
    }

    /** A classifier, or a regression. */
    private record Classifier(
            Path model,
            String told,
            @Nullable LoraConfig lora,
            TrainedModel.Factory factory,
            TrainedModel.Factory saved,
            BatchShape shape,
            Supplier<TokenSequences> training,
            Supplier<TokenSequences> evaluated,
            TaskLabels labels)
            implements Tuned {
        @Override
        public float rate() {
            return lora == null ? 1e-4f : 1e-3f;
        }

        @Override
        public Optional<Supplier<TokenSequences>> held() {
            return Optional.of(evaluated);
        }

        @Override
        public Optional<Predictions> predictions() {
            return Optional.of(labels.predictions());
        }

        @Override
        public void begin(RunState weights) {
            Esm2Checkpoint.begin(weights, model);
        }

        @Override
        public void save(TrainedModel trained, Path folder) {
            labels.scale().save(folder, whole -> {
                Esm2Classifier classifier = (Esm2Classifier) trained;
                if (lora != null) {
                    PeftAdapters.save(classifier, lora, model, labels.names(), whole);
                } else {
                    Esm2Checkpoint.save(
                            classifier,
                            whole,
                            SaveConfig.standard().withLabels(labels.names()).withUnusedFrom(model));
                }
            });
        }
    }
}
