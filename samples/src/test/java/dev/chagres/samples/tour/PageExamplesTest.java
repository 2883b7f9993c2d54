package dev.chagres.samples.tour;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.Device;
import dev.chagres.launch.Ranks;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Examples of the documentation are regions of tests, which compile and run; programs that it links learn. */
@Tag("L0")
class PageExamplesTest {
    private static final Path PROJECT = Path.of("").toAbsolutePath().getParent();

    @ParameterizedTest
    @CsvSource({
        "passes.md, sharding/OwnLossTest, loss",
        "passes.md, sharding/OwnLossTest, lossOverRanks",
        "collectives.md, sharding/CollectivesExampleTest, ring",
        "strategies.md, sharding/StrategyExamplesTest, dataParallel",
        "sharded-options.md, sharding/StrategyExamplesTest, config",
        "tensor-parallel.md, sharding/StrategyExamplesTest, sequenceParallel",
        "step-graphs.md, batch/ResumeExampleTest, sequences",
        "step-graphs.md, batch/ResumeExampleTest, place",
        "streams-and-threads.md, pass/PassPoolTest, pool",
        "recipes-products.md, te/Float8ByHandTest, gradients",
        "cudnn.md, cudnn/GraphExamplesTest, graph",
        "cudnn.md, cudnn/GraphExamplesTest, plan",
        "cudnn-attention.md, cudnn/GraphExamplesTest, attention",
        "cudnn-attention.md, cudnn/GraphExamplesTest, packed",
        "passes.md, layer/SequencePoolingConformance, pooling",
        "cudnn.md, cudnn/PlanChoicesTest, choices",
        "fine-tuning.md, parameter/TrainableTest, trainable",
        "fine-tuning.md, adapter/LoraExampleTest, lora",
        "fine-tuning.md, models/huggingface/PeftAdaptersTest, peft",
        "fine-tuning.md, models/esm/TargetsTest, targets",
        "fine-tuning.md, trainer/DecoderTrainingTest, adapters",
        "hugging-face.md, models/huggingface/HuggingFaceExampleTest, folder",
        "decoders.md, trainer/DecoderTextTest, text",
        "chats.md, models/text/ChatTemplateTest, chat",
        "planning.md, estimate/DryRunTest, count",
        "planning.md, trainer/StepEstimateTest, estimate",
        "training-evaluation.md, trainer/callback/EvaluationTest, evaluation"
    })
    void thePageShowsTheRegion(String page, String test, String region) throws IOException {
        Path file = Stream.of("api", "models", "trainer")
                .map(module -> PROJECT.resolve(module + "/src/test/java/dev/chagres/" + test + ".java"))
                .filter(Files::exists)
                .findFirst()
                .orElseThrow();
        String source = Files.readString(file);
        Matcher lines = Pattern.compile("// @start region=\"" + region + "\"\n(.*?) *// @end", Pattern.DOTALL)
                .matcher(source);
        assertTrue(lines.find(), () -> test + " has no region " + region);
        String example = "```java\n" + lines.group(1).stripTrailing().stripIndent() + "\n```\n";
        assertTrue(
                Files.readString(PROJECT.resolve("docs").resolve(page)).contains(example),
                () -> "docs/" + page + ": expected the region " + region + " of " + test + ":\n" + example);
    }

    /** A block of code after the link to a file of samples/consumers is a part of that file, but for its indentation. */
    @ParameterizedTest
    @CsvSource({"using.md, 10", "benchmarks.md, 2"})
    void thePageShowsPartsOfTheConsumers(String page, int fewest) throws IOException {
        Matcher blocks = Pattern.compile(
                        "]\\(\\.\\./(samples/consumers/[^)]+)\\):?\n\n```\\w*\n(.*?)```", Pattern.DOTALL)
                .matcher(Files.readString(PROJECT.resolve("docs").resolve(page)));
        int count = 0;
        while (blocks.find()) {
            String file = blocks.group(1);
            String source = Files.readString(PROJECT.resolve(file));
            Matcher version = Pattern.compile("<chagres.version>(.*?)<").matcher(source);
            String whole = version.find() ? source.replace("${chagres.version}", version.group(1)) : source;
            String shown = blocks.group(2);
            assertTrue(withoutIndentation(whole).contains(withoutIndentation(shown)), () -> file + " has no\n" + shown);
            count++;
        }
        int blocksFound = count;
        assertTrue(count >= fewest, () -> page + ": expected blocks of consumers, got " + blocksFound);
    }

    private static String withoutIndentation(String text) {
        return text.lines().map(String::strip).collect(Collectors.joining("\n", "\n", "\n"));
    }

    /** The loss of an even guess is ln 32 = 3.5. */
    @Test
    void thePipelineLearns() {
        assumeTrue(Device.count() >= 2, "skipped: it needs two devices");
        List<Float> losses = Ranks.local(2).run(rank -> new PipelineProgram().train(rank));
        assertTrue(losses.getLast() < 0.5, () -> "loss: expected below 0.5, got " + losses);
        assertEquals(0, losses.getFirst(), "only the last stage has the loss");
    }
}
