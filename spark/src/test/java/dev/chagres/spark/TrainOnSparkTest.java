package dev.chagres.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.PrintWriter;
import java.io.StringWriter;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

/** Options that are refused before Spark starts. */
@Tag("L0")
class TrainOnSparkTest {
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "--ranks=0 | --ranks: expected at least 1, got 0",
                "--ranks=2 --model=9B | --model: expected one of [tiny, 8M, 35M, 150M, 650M, 3B, 15B], got 9B",
                "--ranks=2 --strategy=tp | --strategy: expected one of [ddp, zero1, zero2, zero3], got tp",
                "--ranks=2 --context=2 | context: expected at least 3 tokens, got 2",
                "--ranks=2 --tokens-per-rank=100 | tokensPerRank: expected a multiple of 16 of at least the context, 128, got 100",
                "--ranks=2 --learning-rate=-1 | learningRate: expected a number of at least 0, got -1.0",
                "--ranks=2 --warm-up-steps=-1 | warmUpSteps: expected at least 0, got -1",
                "--ranks=2 --timeout-seconds=0 | timeout: expected 1 ms to 1 day, got PT0S",
                "--ranks=2 --timeout-seconds=100000 | timeout: expected 1 ms to 1 day, got PT27H46M40S"
            })
    void wrongOptionsAreTold(String options, String expected) {
        var err = new StringWriter();
        int status =
                new CommandLine(new TrainOnSpark()).setErr(new PrintWriter(err)).execute(options.split(" "));
        assertEquals(2, status);
        assertTrue(err.toString().startsWith(expected), err.toString());
    }
}
