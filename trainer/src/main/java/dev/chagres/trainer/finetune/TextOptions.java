package dev.chagres.trainer.finetune;

import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.RunState;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.models.text.TextConfig;
import dev.chagres.models.text.TextSequences;
import dev.chagres.models.text.Tokenizer;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.trainer.command.FileChecks;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** The options of {@code finetune} about text, and what a decoder learns by them. */
final class TextOptions {
    /** Logits of so many tokens are in memory. */
    private static final int LOSS_TOKENS = 1024;

    @Option(
            names = "--text",
            arity = "1..*",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description =
                    "train the decoder in the folder of --model on text: .jsonl and .parquet with text, or prompt and completion, or messages,"
                            + " of which completions and answers alone are learned; any other file is one text")
    private List<Path> texts = List.of();

    @Option(
            names = "--eval-text",
            arity = "1..*",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description =
                    "with --text, evaluate these texts, and save the best state (default: none, the last state is saved)")
    private List<Path> held = List.of();

    /** Returns whether texts are learned. */
    boolean areGiven() {
        return !texts.isEmpty();
    }

    /** Checks what depends on no file. */
    void check() {
        if (texts.isEmpty() && !held.isEmpty()) {
            throw new IllegalArgumentException("--eval-text: expected --text beside it, got none");
        }
        texts.forEach(file -> FileChecks.requireName("--text", file));
        held.forEach(file -> FileChecks.requireName("--eval-text", file));
    }

    /** Reads the files. */
    Tuned tuned(Path model, @Nullable LoraConfig lora, TuningOptions options) {
        options.ensureHas(Set.of(), "texts");
        HeldOut heldOut = options.heldOut("--eval-text", !held.isEmpty());
        if (held.isEmpty() && heldOut == null && options.patience > 0) {
            throw new IllegalArgumentException(
                    "--early-stopping: expected --eval-text or --eval-fraction beside it, got none");
        }
        DecoderConfig config = DecoderCheckpoint.config(model);
        LoraConfig adapters = lora == null
                ? null
                : LoraOption.of(
                        lora, List.of("query", "key", "value", "projection", "gate", "up", "fc2"), "query", "value");
        var texting =
                new TextConfig(options.context, config.tokens().ends().stream().findFirst(), options.seed);
        try (Tokenizer tokenizer = Tokenizer.open(model)) {
            TextSequences training =
                    TextSequences.read(texts, tokenizer, heldOut == null ? texting : texting.without(heldOut));
            TextSequences evaluated = null;
            if (heldOut != null) {
                evaluated = TextSequences.read(texts, tokenizer, texting.only(heldOut));
            } else if (!held.isEmpty()) {
                evaluated = TextSequences.read(held, tokenizer, texting);
            }
            BatchShape shape = options.shape(Math.max(training.longest(), evaluated == null ? 0 : evaluated.longest()));
            DecoderConfig made = config.withLossTokens(LOSS_TOKENS).withRecomputation(Recomputation.NORMS);
            return new Texts(
                    model,
                    told(training, texts)
                            + (evaluated == null
                                    ? ""
                                    : ", " + (heldOut == null ? "" : "held out ")
                                            + told(evaluated, heldOut == null ? held : texts)),
                    adapters,
                    adapted(made.withContext(shape.context()), adapters),
                    adapted(made, adapters),
                    shape,
                    () -> training.epochs(options.epochs),
                    Optional.ofNullable(evaluated).map(sequences -> sequences::once));
        }
    }

    private static TrainedModel.Factory adapted(DecoderConfig config, @Nullable LoraConfig adapters) {
        return adapters == null ? config : config.adapted(adapters);
    }

    private static String told(TextSequences sequences, List<Path> files) {
        return sequences.count() + " sequences of "
                + String.join(" ", files.stream().map(Path::toString).toList())
                + (sequences.leftOut() == 0 ? "" : " (" + sequences.leftOut() + " left out, with nothing to learn)");
    }

    /** A decoder. */
    private record Texts(
            Path model,
            String told,
            @Nullable LoraConfig lora,
            TrainedModel.Factory factory,
            TrainedModel.Factory saved,
            BatchShape shape,
            Supplier<TokenSequences> training,
            Optional<Supplier<TokenSequences>> held)
            implements Tuned {
        @Override
        public float rate() {
            return lora == null ? 2e-5f : 2e-4f;
        }

        @Override
        public Optional<Predictions> predictions() {
            return Optional.empty();
        }

        @Override
        public void begin(RunState weights) {
            DecoderCheckpoint.begin(weights, model);
        }

        @Override
        public void save(TrainedModel trained, Path folder) {
            Decoder decoder = (Decoder) trained;
            if (lora != null) {
                PeftAdapters.save(decoder, lora, model, folder);
            } else {
                DecoderCheckpoint.save(decoder, folder, SaveConfig.standard().withTokenizerFrom(model));
            }
        }
    }
}
