package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.models.text.ChatTemplate;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.imageio.ImageIO;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class PlotTest {
    @TempDir
    private Path folder;

    private String out = "";
    private String err = "";

    private int run(String... arguments) {
        var printed = new ByteArrayOutputStream();
        var failed = new ByteArrayOutputStream();
        int status = Plot.run(
                new PrintStream(printed, true, StandardCharsets.UTF_8),
                new PrintStream(failed, true, StandardCharsets.UTF_8),
                arguments);
        out = printed.toString(StandardCharsets.UTF_8);
        err = failed.toString(StandardCharsets.UTF_8);
        return status;
    }

    private String report(String name, String... lines) throws IOException {
        return Files.writeString(folder.resolve(name), String.join("\n", lines) + "\n")
                .toString();
    }

    @Test
    void drawsALineForEachReportAndPrintsHowTheyEnd() throws IOException {
        String bf16 = report(
                "a.jsonl",
                "{\"model\":\"8M\",\"recipe\":\"bf16\"}",
                "{\"step\":1,\"loss\":4}",
                "{\"step\":2,\"loss\":2.5}",
                "{\"step\":3,\"loss\":1.5}");
        String fp8 = report(
                "b.jsonl",
                "{\"model\":\"8M\",\"recipe\":\"fp8-block\"}",
                "{\"step\":1,\"loss\":9}",
                "{\"step\":2,\"loss\":4}",
                "{\"step\":3,\"loss\":2.02}");
        String shorter = report("c.jsonl", "{\"model\":\"8M\",\"recipe\":\"fp16\"}", "{\"step\":1,\"loss\":3}");
        Path picture = folder.resolve("both.png");
        assertEquals(0, run(bf16, fp8, shorter, "--mean-of", "2", "--output", picture.toString()), err);
        assertEquals("""
                8M bf16: 3 steps, mean loss of the last 2: 2.0000
                8M fp8-block: 3 steps, mean loss of the last 2: 3.0100 (+50.50 %)
                8M fp16: 1 step, mean loss of the last 1: 3.0000 (not compared: other steps than the first's)
                """, out);
        assertNotNull(ImageIO.read(picture.toFile()));
    }

    /** A runtime that jlink made of few modules says which one it lacks, before anything is read. */
    @Test
    void aRuntimeThatCannotDrawSaysWhatItLacks() throws IOException, InterruptedException {
        String told = withoutDesktop(2, Plot.class, "none.jsonl", "--output=x.png");
        assertEquals(
                "plot: --output: expected a Java runtime with the module java.desktop, which draws pictures, got one"
                        + " without it; take a whole JDK, or make yours with jlink --add-modules java.desktop, or leave"
                        + " --output out (plot --help lists the options)",
                told.strip());
        Files.writeString(folder.resolve("chat_template.jinja"), "{{ messages[0].content }}");
        String chat = withoutDesktop(1, Chat.class, folder.toString());
        assertTrue(
                chat.contains("TextException: " + folder.resolve("chat_template.jinja")
                        + ": expected a Java runtime with the module java.desktop, whose java.beans templates need, got"
                        + " one without it; take a whole JDK, or make yours with jlink --add-modules java.desktop"),
                chat);
    }

    /** A program that opens a chat template. */
    static final class Chat {
        private Chat() {}

        public static void main(String[] arguments) {
            ChatTemplate.open(Path.of(arguments[0]));
        }
    }

    private static String withoutDesktop(int status, Class<?> program, String... arguments)
            throws IOException, InterruptedException {
        Process process = new ProcessBuilder(TrainJvm.command(
                        List.of(),
                        List.of("--limit-modules", "java.logging,java.xml,java.management,jdk.jfr,jdk.unsupported"),
                        program,
                        List.of(arguments)))
                .redirectErrorStream(true)
                .start();
        String told = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(status, process.waitFor(), told);
        return told;
    }

    /** By model, recipe and ranks; where these are alike by the file, the first one's too. */
    @Test
    void namesTellRunsApart() throws IOException {
        String step = "{\"step\":1,\"loss\":2}";
        String alone = report("a.jsonl", "{\"model\":\"8M\",\"recipe\":\"bf16\",\"ranks\":1,\"strategy\":null}", step);
        String older =
                report("b.jsonl", "{\"model\":\"8M\",\"recipe\":\"bf16\",\"ranks\":1,\"strategy\":\"ddp\"}", step);
        String sharded = report(
                "c.jsonl",
                "{\"model\":\"8M\",\"recipe\":\"bf16\",\"ranks\":2,\"strategy\":\"zero3\"}",
                "{\"step\":1,\"loss\":1.99999}");
        String rest = ": 1 step, mean loss of the last 1: 2.0000";
        assertEquals(0, run(alone, sharded), err);
        assertEquals("8M bf16" + rest + "\n8M bf16 on 2 ranks (zero3)" + rest + " (+0.00 %)\n", out);
        assertEquals(0, run(alone, sharded, older), err);
        assertEquals(
                "8M bf16, " + alone + rest + "\n8M bf16 on 2 ranks (zero3)" + rest + " (+0.00 %)\n8M bf16, " + older
                        + rest + " (+0.00 %)\n",
                out);
        assertEquals(2, run(alone, sharded, alone));
        assertEquals(
                "plot: REPORT: expected each once, got " + alone + " twice (plot --help lists the options)\n", err);
    }

    /** Only means of the same steps are compared. */
    @Test
    void aRunThatWentOnIsComparedOverTheStepsThatBothMade() throws IOException {
        String first = "{\"model\":\"8M\",\"recipe\":\"bf16\"}";
        String whole = report(
                "a.jsonl", first, "{\"step\":1,\"loss\":8}", "{\"step\":2,\"loss\":4}", "{\"step\":3,\"loss\":2}");
        String resumed = report("b.jsonl", first, "{\"step\":2,\"loss\":5}", "{\"step\":3,\"loss\":4}");
        assertEquals(0, run(whole, resumed, "--mean-of", "2"), err);
        assertEquals(
                "8M bf16, " + whole + ": 3 steps, mean loss of the last 2: 3.0000\n8M bf16, " + resumed
                        + ": 2 steps from step 2 on, mean loss of the last 2: 4.5000 (+50.00 %)\n",
                out);
        assertEquals(0, run(whole, resumed), err);
        assertEquals(
                "8M bf16, " + whole + ": 3 steps, mean loss of the last 3: 4.6667\n8M bf16, " + resumed
                        + ": 2 steps from step 2 on, mean loss of the last 2: 4.5000 (not compared: other steps than the first's)\n",
                out);
        String other = report("c.jsonl", first, "{\"step\":1,\"loss\":5}", "{\"step\":2,\"loss\":4}");
        assertEquals(0, run(resumed, other), err);
        assertEquals(
                "8M bf16, " + resumed + ": 2 steps from step 2 on, mean loss of the last 2: 4.5000\n8M bf16, " + other
                        + ": 2 steps, mean loss of the last 2: 4.5000 (not compared: other steps than the first's)\n",
                out);
    }

    @Test
    void aLossOfASkippedStepIsNoNumber() throws IOException {
        String skipped = report(
                "a.jsonl",
                "{\"model\":\"8M\",\"recipe\":\"fp16\"}",
                "{\"step\":1,\"loss\":null}",
                "{\"step\":2,\"loss\":2}");
        assertEquals(0, run(skipped, "--mean-of", "1"), err);
        assertEquals("8M fp16: 2 steps, mean loss of the last 1: 2.0000\n", out);
        assertEquals(0, run(skipped), err);
        assertEquals("8M fp16: 2 steps, mean loss of the last 2: NaN\n", out);
        String whole = report(
                "b.jsonl",
                "{\"model\":\"8M\",\"recipe\":\"bf16\"}",
                "{\"step\":1,\"loss\":4}",
                "{\"step\":2,\"loss\":2}");
        assertEquals(0, run(whole, skipped), err);
        assertEquals(
                "8M bf16: 2 steps, mean loss of the last 2: 3.0000\n"
                        + "8M fp16: 2 steps, mean loss of the last 2: NaN (not compared: the means have no ratio)\n",
                out);
    }

    @Test
    void hostileReportsAndOptionsAreToldInVisibleAndFewLetters() throws IOException {
        String line = report("line", "{\"model\":\"" + "8".repeat(1 << 22) + "\"}");
        assertEquals(1, run(line));
        assertEquals(
                "plot: " + line
                        + ", line 1: is longer than 4194304 characters, more than a line of a report; expected a"
                        + " report of train --report\n",
                err);
        String hostile = "\u001b[2J" + "n".repeat(100_000);
        for (String[] arguments : new String[][] {
            {hostile},
            {line, "--mean-of", hostile},
            {line, "--mean-of=" + hostile},
            {line, "--" + hostile},
            {line, "--output", hostile}
        }) {
            assertTrue(run(arguments) != 0);
            assertTrue(err.length() < 3000, err);
            assertTrue(err.strip().chars().noneMatch(Character::isISOControl), err);
        }
    }

    @Test
    void whatIsNoReportIsNamedAndNothingIsDrawn() throws IOException {
        Path picture = folder.resolve("none.png");
        String absent = folder.resolve("absent").toString();
        String text = report("text", "step,loss");
        String other = report("other", "{\"model\":\"8M\"}", "{\"step\":1,\"loss\":1}");
        String short1 = report("short", "{\"model\":\"8M\",\"recipe\":\"bf16\"}");
        String broken = report("broken", "{\"model\":\"8M\",\"recipe\":\"bf16\"}", "{\"step\":1,\"loss\":1}", "{\"los");
        String lacking = report("lacking", "{\"model\":\"8M\",\"recipe\":\"bf16\"}", "{\"step\":1}");
        String hint = "; expected a report of train --report\n";
        for (String[] wrong : new String[][] {
            {absent, ": there is no such file\n"},
            {text, ", line 1: is no JSON object" + hint},
            {
                report("ranks", "{\"model\":\"8M\",\"recipe\":\"bf16\",\"ranks\":2}", "{\"step\":1,\"loss\":1}"),
                ", line 1: lacks \"strategy\"" + hint
            },
            {other, ", line 1: lacks \"recipe\"" + hint},
            {short1, ": has no step\n"},
            {broken, ", line 3: is no JSON object" + hint},
            {lacking, ", line 2: lacks \"loss\"" + hint},
            {
                report("unnumbered", "{\"model\":\"8M\",\"recipe\":\"bf16\"}", "{\"loss\":1}"),
                ", line 2: lacks \"step\"" + hint
            },
            {
                report(
                        "back",
                        "{\"model\":\"8M\",\"recipe\":\"bf16\"}",
                        "{\"step\":4,\"loss\":1}",
                        "{\"step\":4,\"loss\":1}"),
                ", line 3: has step 4, where 5 or more was to come" + hint
            },
            {report("null", "null", "null"), ", line 1: is no JSON object" + hint},
            {
                report("control", "{\"model\":\"\\u001b[2J\",\"recipe\":\"x\"}", "{\"step\":1,\"loss\":1}"),
                ", line 1: lacks \"model\"" + hint
            },
            {folder.toString(), ": cannot be read: it is a directory\n"}
        }) {
            assertEquals(1, run(wrong[0], "--output", picture.toString()));
            assertEquals("plot: " + wrong[0] + wrong[1], err);
            assertFalse(Files.exists(picture));
        }
        assertEquals(2, run(text, "--mean-of", "0"));
        assertEquals("plot: --mean-of: expected at least 1, got 0 (plot --help lists the options)\n", err);
        assertEquals(2, run(other, "--output", other));
        assertEquals(
                "plot: --output: " + other
                        + " is the file of REPORT; name another one (plot --help lists the options)\n",
                err);
        assertEquals(2, run(text, "--output", other));
        assertEquals(
                "plot: --output: expected a name that ends with .png, got " + other
                        + " (plot --help lists the options)\n",
                err);
        assertEquals("{\"model\":\"8M\"}\n{\"step\":1,\"loss\":1}\n", Files.readString(Path.of(other)));
        assertEquals(2, run(""));
        assertEquals(
                "plot: REPORT: expected the name of a file, got an empty one (plot --help lists the options)\n", err);
        assertEquals(2, run());
        assertEquals("plot: Missing required parameter: 'REPORT' (plot --help lists the options)\n", err);
    }
}
