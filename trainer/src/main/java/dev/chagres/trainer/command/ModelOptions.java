package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** The ESM-2 in a folder of Hugging Face, the proteins that commands give it, and how it computes. */
final class ModelOptions {
    private static final int GPU_TOKENS = 16_384;
    private static final int CPU_TOKENS = 4_096;

    /** Values of {@code --dtype}. */
    enum Precision {
        FP32(DType.FLOAT32),
        BF16(DType.BFLOAT16),
        FP16(DType.FLOAT16);

        private final DType dtype;

        Precision(DType dtype) {
            this.dtype = dtype;
        }
    }

    /** Values of {@code --provider}. */
    enum ProviderChoice {
        AUTO,
        CUDA,
        REFERENCE
    }

    static final class OfPrecision extends EnumOption<Precision> {
        OfPrecision() {
            super(Precision.class);
        }
    }

    static final class OfProvider extends EnumOption<ProviderChoice> {
        OfProvider() {
            super(ProviderChoice.class);
        }
    }

    @Option(
            names = "--model",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description = "the ESM-2 in a folder of Hugging Face")
    private Path folder = Path.of("");

    @Option(
            names = "--context",
            paramLabel = "N",
            description = "longest sequence in tokens, <cls> and <eos> included (default: max_position_embeddings of"
                    + " config.json)")
    private @Nullable Integer context;

    @Option(
            names = "--batch-tokens",
            paramLabel = "N",
            description =
                    "tokens that are computed at a time, at least those of a sequence (default: 4096 on a CPU, 16384"
                            + " on a GPU)")
    private @Nullable Integer batchTokens;

    @Option(
            names = "--dtype",
            converter = OfPrecision.class,
            paramLabel = "fp32|bf16|fp16",
            description = "type of weights and activations (default: fp32 on a CPU, bf16 on a GPU)")
    private @Nullable Precision precision;

    @Option(
            names = "--provider",
            converter = OfProvider.class,
            paramLabel = "NAME",
            description = "cuda, reference or auto: cuda where there is an NVIDIA driver (default: auto)")
    private @Nullable ProviderChoice provider;

    @Mixin
    private final FastaOptions fasta = new FastaOptions();

    /** Returns the options of the proteins. */
    FastaOptions fasta() {
        fasta.check();
        return fasta;
    }

    /** Refuses a file of the proteins or of the model that another option is to write. */
    void requireOthers(String option, @Nullable Path file) {
        fasta.requireOthers(option, file);
        FileChecks.requireOutside(option, file, "--model", folder);
    }

    /**
     * Checks what depends on no file, and lets the provider be chosen.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void begin() {
        if (context != null && context < 3) {
            throw new IllegalArgumentException(
                    "--context: expected at least 3 (<cls>, one residue, <eos>), got " + context);
        }
        if (batchTokens != null && batchTokens < 1) {
            throw new IllegalArgumentException("--batch-tokens: expected at least 1, got " + batchTokens);
        }
        if (provider != null) {
            System.setProperty(Provider.PROPERTY, EnumOption.word(provider));
        }
    }

    Path folder() {
        return folder;
    }

    /**
     * Returns sizes and form of the model, with the context that was asked for.
     *
     * @throws dev.chagres.models.huggingface.CheckpointException when the folder has no ESM-2
     */
    Esm2Config config() {
        Esm2Config config = Esm2Checkpoint.config(folder);
        return context == null ? config : config.withContext(context);
    }

    private static boolean isGpu() {
        return Provider.current() == Provider.CUDA;
    }

    /** Returns how many tokens are computed at a time. */
    int batchTokens() {
        return batchTokens != null ? batchTokens : isGpu() ? GPU_TOKENS : CPU_TOKENS;
    }

    /** Returns the type of weights and activations in a word. */
    String precision() {
        return EnumOption.word(chosen());
    }

    private Precision chosen() {
        return precision != null ? precision : isGpu() ? Precision.BF16 : Precision.FP32;
    }

    /** Returns the type of weights and activations. */
    DType dtype() {
        return chosen().dtype;
    }

    /** Returns the context that was asked for; null where none was. */
    @Nullable
    Integer context() {
        return context;
    }

    /** Makes the model without its head, if it has one. */
    Esm2Base openBase(Device device) {
        return Esm2Checkpoint.openBase(device, folder, chosen().dtype, config().context());
    }

    /** Makes the masked-language model, to evaluate it: nothing has a gradient. */
    Esm2 open(Device device) {
        return Esm2Checkpoint.openFrozen(device, folder, chosen().dtype, config().context());
    }

    /** Returns a text that tells this model from another one: sizes and checksums of the beginnings and ends of its files. */
    String content() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            List<Path> all = files.filter(file -> {
                        String name = String.valueOf(file.getFileName()).toLowerCase(Locale.ROOT);
                        return name.equals("config.json") || name.endsWith(".safetensors");
                    })
                    .sorted()
                    .toList();
            return all.stream()
                    .map(file -> file.getFileName() + " " + FastaSource.of(file).content())
                    .collect(Collectors.joining(", "));
        }
    }
}
