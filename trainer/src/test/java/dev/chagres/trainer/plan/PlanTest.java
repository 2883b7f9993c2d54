package dev.chagres.trainer.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.bindings.Provider;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.trainer.TrainingRecipe;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What {@code plan} tells. */
class PlanTest {
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();

    @BeforeEach
    void assumeReference() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "only the reference counts");
    }

    private int run(String... arguments) {
        out.reset();
        err.reset();
        return Plan.run(
                new PrintStream(out, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                arguments);
    }

    private String out() {
        return out.toString(StandardCharsets.UTF_8);
    }

    private String err() {
        return err.toString(StandardCharsets.UTF_8);
    }

    private List<?> choices(String... arguments) throws IOException {
        assertEquals(0, run(arguments), this::err);
        return (List<?>) JSON.std.mapFrom(out()).get("choices");
    }

    @Test
    void tellsMemoryAndRateThatWereMeasured() throws IOException {
        List<?> choices = choices("--model", "650M", "--mean-length", "330", "--json");
        Map<?, ?> usual = choice(choices, "ddp", 1);
        // An H200 held 26.25 GiB and trained 110,300 tokens/s (docs/planning.md).
        assertEquals(26.25 + 0.6, number(usual, "memoryBytes") / (1L << 30), 0.5);
        assertEquals(110_300, number(usual, "tokensPerSecond"), 5_000);
        assertEquals("--tokens-per-step 16384", usual.get("options"));
        Map<?, ?> best = (Map<?, ?>) choices.getFirst();
        assertEquals("--tokens-per-step 16384 --recompute none", best.get("options"));
        double kept = 16_384.0 * 5_120 * 2;
        assertEquals(33 * kept, number(best, "memoryBytes") - number(usual, "memoryBytes"), 2 * kept);
        Map<?, ?> holders = (Map<?, ?>) usual.get("holders");
        assertTrue(((Number) holders.get("activations")).longValue() > 16_000L << 20, holders.toString());
    }

    @Test
    void takesLessMemoryWhereThereIsLess() throws IOException {
        String[] arguments = {"--model", "650M", "--json", "--memory", "20"};
        for (Object one : choices(arguments)) {
            assertTrue(
                    ((Number) ((Map<?, ?>) one).get("memoryBytes")).doubleValue() <= 20.0 * (1L << 30), one.toString());
        }
    }

    /** Of 30 layers the inputs of all but four may lie on the host: as few as let steps fit, of the largest micro-batches. */
    @Test
    void keepsInputsOnTheHostWhereMemoryIsSmall() throws IOException {
        String[] arguments = {"--model", "150M", "--tokens-per-step", "16384", "--json", "--all"};
        List<?> counted = choices(arguments);
        Map<?, ?> onDevice = recomputed(counted, "none");
        Map<?, ?> onHost = recomputed(counted, "all");
        double input = 16_384.0 * 640 * 2;
        assertEquals(26 * input, number(onHost, "hostBytes"));
        assertEquals(0, number(onDevice, "hostBytes"));
        double least = number(onHost, "memoryBytes");
        assertEquals(26 * input, number(onDevice, "memoryBytes") - least, input);
        assertTrue(number(onHost, "tokensPerSecond") < number(onDevice, "tokensPerSecond"));
        assertTrue(number(onHost, "exposedCopySeconds") > 0);
        assertTrue(String.valueOf(onHost.get("options")).endsWith(" --recompute layers --offload activations"));

        String enough = String.valueOf((least + 5.5 * input) / (1L << 30));
        List<?> found = choices("--model", "150M", "--memory", enough, "--json");
        Map<?, ?> fits = recomputed(found, "25");
        assertEquals(least + 5 * input, number(fits, "memoryBytes"), input / 2);
        assertEquals(21 * input, number(fits, "hostBytes"));
        assertTrue(
                String.valueOf(fits.get("options"))
                        .endsWith("--recompute layers --offload activations --offload-layers 25"),
                fits::toString);
        for (Object one : found) {
            Map<?, ?> choice = (Map<?, ?>) one;
            boolean more = (int) choice.get("accumulate") > 1;
            assertTrue(choice == fits || more || choice.get("offload").equals("none"), found::toString);
        }
    }

    private static Map<?, ?> recomputed(List<?> choices, String offload) {
        return choices.stream()
                .map(one -> (Map<?, ?>) one)
                .filter(one -> one.get("recompute").equals("layers")
                        && one.get("accumulate").equals(1)
                        && one.get("offload").equals(offload))
                .findFirst()
                .orElseThrow(() -> new AssertionError(offload + " of " + choices));
    }

    private static double number(Map<?, ?> choice, String name) {
        return ((Number) choice.get(name)).doubleValue();
    }

    /** A millisecond's copies hide behind layers that take longer, forward a quarter of their time, and cost the device's memory what they move. */
    @Test
    void copiesThatAreLongerThanLayersAreWaitedFor() {
        double bytes = 50e9 * 1e-3;
        double busy = 2 * bytes / 4.3e12;
        var copies = new StepTime.Copies(10, 6, bytes);
        assertEquals(6 * busy, copies.exposed(10 * 4e-3), 1e-9);
        assertEquals(6 * (0.5e-3 + busy), copies.exposed(10 * 2e-3), 1e-9);
        assertEquals(6 * (0.75e-3 + 0.25e-3 + busy), copies.exposed(10 * 1e-3), 1e-9);
        assertEquals(0, new StepTime.Copies(4, 0, bytes).exposed(1e-6));
    }

    @Test
    void choicesAreReadAsTheyAreWritten() {
        var choice = new Choice(Choice.Strategy.PP, 4, Recomputation.LAYERS, Choice.Updates.ADAMW_OFFLOADED);
        assertEquals("pp:4:layers:adamw-offloaded", choice.toString());
        for (ActivationOffload offload :
                List.of(ActivationOffload.none(), new ActivationOffload(24), ActivationOffload.all())) {
            Choice with = choice.with(offload);
            assertEquals(with, Choice.parse(with.toString()));
        }
        assertEquals(
                "pp:4:layers:adamw-offloaded:24",
                choice.with(new ActivationOffload(24)).toString());
        var steps = new Choice.Steps(PlannedModel.of("150M", 64), 2, 256, 64, TrainingRecipe.BF16);
        assertEquals(
                "--ranks 2 --strategy pp --tokens-per-step 256 --accumulate 4 --recompute layers --offload optimizer,activations",
                choice.with(ActivationOffload.all()).options(steps));
        assertEquals(15, choice.ownLayers(steps));
    }

    @Test
    void comparesStrategies() {
        assertEquals(
                0, run("--model", "tiny", "--gpus", "2", "--context", "64", "--tokens-per-step", "256"), this::err);
        for (String strategy : List.of("ddp", "zero1", "zero2", "zero3", "tp", "pp", "cp")) {
            assertTrue(out().contains("\n" + strategy + " "), out());
        }
        assertTrue(
                out().contains("./chagres train --model tiny --recipe bf16 --context 64 --ranks 2 --strategy "), out());
        assertTrue(out().contains("memory of the first: "), out());
    }

    /** Two copies of a sharded model need four GPUs; a pipeline's stages wait less the more micro-batches there are. */
    @Test
    void hybridsAndPipelinesOfFour() throws IOException {
        List<?> choices =
                choices("--model", "8M", "--gpus", "4", "--context", "256", "--tokens-per-step", "1024", "--json");
        double state = 0;
        double before = Double.MAX_VALUE;
        for (int accumulate : new int[] {1, 2, 4}) {
            Map<?, ?> pipeline = choice(choices, "pp", accumulate);
            double exposed = ((Number) pipeline.get("exposedCommunicationSeconds")).doubleValue();
            assertTrue(exposed < before, accumulate + ": " + exposed);
            before = exposed;
            state = optimizerBytes(pipeline);
        }
        assertTrue(state < 0.6 * optimizerBytes(choice(choices, "ddp", 1)), "a stage's state: " + state);
        double hybrid = optimizerBytes(choice(choices, "hsdp", 1));
        assertEquals(2, hybrid / optimizerBytes(choice(choices, "zero3", 1)), 0.3);
        assertTrue(hybrid < optimizerBytes(choice(choices, "cp", 1)), "context-parallel ranks have the whole state");
    }

    private static Map<?, ?> choice(List<?> choices, String strategy, int accumulate) {
        return choices.stream()
                .map(one -> (Map<?, ?>) one)
                .filter(one -> one.get("strategy").equals(strategy)
                        && one.get("recompute").equals("activation")
                        && one.get("accumulate").equals(accumulate))
                .findFirst()
                .orElseThrow(() -> new AssertionError(strategy + " " + accumulate + " of " + choices));
    }

    /** State in bytes a parameter; Muon's products, of 650M's layers, are 33 times 5 (4 R^2 C + 2 R^3) of four matrices. */
    @Test
    void optimizersDifferInStateAndTime() throws IOException {
        Map<String, Map<?, ?>> all = new HashMap<>();
        String names = "adamw,adamw-offloaded,adamw8bit,lion,lion8bit,sgd,adafactor,muon,schedule-free";
        for (Object one : choices("--model", "650M", "--optimizer", names, "--json")) {
            Map<?, ?> choice = (Map<?, ?>) one;
            if (choice.get("recompute").equals("activation")) {
                all.put(String.valueOf(choice.get("optimizer")), choice);
            }
        }
        assertEquals(Set.of(names.split(",")), all.keySet());
        double parameters = 652e6;
        double[] bytes = {10, -1, 4.03, 6, 3.02, 6, 2, 10.2, 12};
        for (int i = 0; i < bytes.length; i++) {
            String name = names.split(",")[i];
            double found = optimizerBytes(Objects.requireNonNull(all.get(name))) / parameters;
            if (bytes[i] > 0) {
                assertEquals(bytes[i], found, 0.15, name);
            }
        }
        double adam = seconds(all, "adamw");
        double side = 1280;
        double operations = 5 * (4 * (3 + 1 + 4 + 4) + 2 * 4) * side * side * side * 33;
        double rate = 330e12 * side / (side + 400);
        double muon = operations / rate + 92 * parameters / (0.9 * 4.3e12);
        assertEquals(muon, seconds(all, "muon") - adam, 0.05 * muon);
        assertEquals(adam, seconds(all, "schedule-free"), 5e-4);
        assertTrue(seconds(all, "lion8bit") < seconds(all, "adafactor") && seconds(all, "adafactor") < adam);
    }

    private static double seconds(Map<String, Map<?, ?>> all, String name) {
        Map<?, ?> one = Objects.requireNonNull(all.get(name));
        return ((Number) one.get("stepSeconds")).doubleValue();
    }

    private static double optimizerBytes(Map<?, ?> choice) {
        return ((Number) ((Map<?, ?>) choice.get("holders")).get("optimizer")).doubleValue();
    }

    @Test
    void saysThatNothingFits() {
        assertEquals(1, run("--model", "8M", "--memory", "0.7", "--context", "16384"));
        assertTrue(
                err().startsWith(
                                "plan: nothing fits: no way to divide 16384 tokens of sequences of 16384 trains 8M on 1 GPUs of 0.7 GiB"),
                err());
    }

    /** As on a full disk, or where standard output is closed. */
    @Test
    void tellsThatWhatItPrintedIsLost() {
        err.reset();
        OutputStream full = new OutputStream() {
            @Override
            public void write(int b) throws IOException {
                throw new IOException("No space left on device");
            }
        };
        int status = Plan.run(
                new PrintStream(full, true, StandardCharsets.UTF_8),
                new PrintStream(err, true, StandardCharsets.UTF_8),
                "--model",
                "tiny");
        assertEquals(1, status);
        assertTrue(err().endsWith("plan: standard output cannot be written\n"), err());
    }

    @Test
    void makesSteps() throws IOException {
        assertEquals(
                0,
                run(
                        "--model",
                        "tiny",
                        "--context",
                        "64",
                        "--tokens-per-step",
                        "64",
                        "--measure-one",
                        "ddp:1:none:adamw"));
        Map<String, Object> measured = JSON.std.mapFrom(out());
        Map<?, ?> planned =
                (Map<?, ?>) choices("--model", "tiny", "--context", "64", "--tokens-per-step", "64", "--json")
                        .getFirst();
        double outside = 0.6 * (1L << 30);
        assertEquals(
                ((Number) measured.get("heldBytes")).doubleValue(),
                ((Number) planned.get("memoryBytes")).doubleValue() - outside,
                1);
        assertTrue(((Number) measured.get("stepMillis")).doubleValue() > 0, measured.toString());
    }

    /** The process that measures is told to take what it finds. */
    @Test
    void measuresOnGpusAlone() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE);
        String before = System.getProperty(Provider.PROPERTY);
        System.setProperty(Provider.PROPERTY, "auto");
        try {
            assertEquals(
                    1,
                    run(
                            "--model",
                            "tiny",
                            "--context",
                            "64",
                            "--tokens-per-step",
                            "64",
                            "--measure-one",
                            "ddp:1:none:adamw"));
            assertEquals("plan: --measure: expected a GPU, got none; ./chagres doctor says why\n", err());
        } finally {
            if (before == null) {
                System.clearProperty(Provider.PROPERTY);
            } else {
                System.setProperty(Provider.PROPERTY, before);
            }
        }
    }

    /** Of a JVM that was asked for what cannot count; where nothing was asked for, or what is found, plan takes what counts. */
    @Test
    void takesTheProviderThatCounts() throws IOException, InterruptedException {
        assertTold(
                2,
                "plan: -Dchagres.provider: expected reference, which counts without computing, got cuda; leave it out: plan takes"
                        + " the reference, and --measure the GPUs (plan --help lists the options)\n",
                "-Dchagres.provider=cuda");
        assertTold(
                1,
                "plan: the JVM denies calls to native libraries: start it with --enable-native-access=ALL-UNNAMED\n",
                "--illegal-native-access=deny");
        assertTold(0, "", "-Dchagres.provider=auto", "--enable-native-access=ALL-UNNAMED");
    }

    private static void assertTold(int status, String expected, String... options)
            throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(
                List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
        String natives = System.getProperty("chagres.native.path");
        if (natives != null) {
            command.add("-Dchagres.native.path=" + natives);
        }
        command.addAll(List.of("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"));
        command.addAll(List.of(options));
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), Plan.class.getName()));
        command.addAll(List.of("--model", "tiny", "--context", "64", "--tokens-per-step", "64"));
        Process process = new ProcessBuilder(command)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        String told = new String(process.getErrorStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(status, process.waitFor(), told);
        assertTrue(status == 0 || expected.equals(told), told);
    }

    @Test
    void refusesWrongOptions() {
        assertWrong("--model: expected one of tiny, 8M", "--model", "7B");
        assertWrong(
                "--model: expected one of tiny, 8M, 35M, 150M, 650M, 3B, 15B, or a folder of Hugging Face, got nothing",
                "--model=");
        assertWrong("--measure: expected at least 1, got 0", "--model", "8M", "--measure", "0");
        assertWrong("--gpus: expected at least 1, got 0", "--model", "8M", "--gpus", "0");
        assertWrong("--memory: expected a finite number of GiB above 0, got 0.0", "--model", "8M", "--memory", "0");
        assertWrong(
                "--memory: expected a finite number of GiB above 0, got Infinity", "--model", "8M", "--memory", "1e39");
        for (String other : List.of("ddp", "ddp:1", "x:1:none:adamw", "ddp:x:none:adamw", "ddp:1:none:adamw:1:2")) {
            assertWrong(
                    "expected a choice such as zero2:1:none:adamw or zero2:1:layers:adamw:24, got \"" + other + "\"",
                    "--model",
                    "8M",
                    "--measure-one",
                    other);
        }
        for (String other : List.of("rope", "")) {
            assertWrong(
                    "--interconnect: expected nvlink, pcie or GB/s above 0, got "
                            + (other.isEmpty() ? "nothing" : other) + " (plan",
                    "--model",
                    "8M",
                    "--interconnect",
                    other);
        }
        assertWrong("--tokens-per-step: expected a multiple of 16", "--model", "8M", "--tokens-per-step", "2001");
        for (String gpus : List.of("134217728", "1073741824", "2147483647")) {
            assertWrong(
                    "--tokens-per-step: expected a multiple of " + 16 * Long.parseLong(gpus),
                    "--model",
                    "8M",
                    "--gpus",
                    gpus);
        }
        assertWrong(
                "--optimizer: expected each name once, got lion again",
                "--model",
                "8M",
                "--optimizer",
                "lion,adamw,lion");
        for (String empty : List.of("", "adamw,,lion", ",lion", "adamw,", ",")) {
            assertWrong(
                    "Invalid value for option '--optimizer' (NAME,…): expected one of adamw, adamw-offloaded, adamw8bit,"
                            + " lion, lion8bit, sgd, adafactor, muon, schedule-free, got "
                            + (empty.equals("adamw,") ? empty : empty.equals(",") ? "," : "nothing") + " (",
                    "--model",
                    "8M",
                    "--optimizer",
                    empty);
        }
        assertWrong(
                "--mean-length: expected 1 to the context, 1024, got 2000", "--model", "8M", "--mean-length", "2000");
    }

    private void assertWrong(String text, String... arguments) {
        assertEquals(2, run(arguments));
        assertTrue(err().startsWith("plan: " + text), err());
    }
}
