package dev.chagres.spark;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;

import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.junit.AnalyzeClasses;
import com.tngtech.archunit.junit.ArchTag;
import com.tngtech.archunit.junit.ArchTest;
import com.tngtech.archunit.lang.ArchRule;

/** The arrows of docs/architecture.md from this module down, and the house's names. */
@ArchTag("L0")
@AnalyzeClasses(packages = "dev.chagres.spark", importOptions = ImportOption.DoNotIncludeTests.class)
class SparkLayersTest {
    @ArchTest
    static final ArchRule thisModuleIsAUserOfTheApi = noClasses()
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage(
                    "dev.chagres.internal..",
                    "dev.chagres.jmh..",
                    "dev.chagres.bindings.te..",
                    "dev.chagres.bindings.ops..",
                    "dev.chagres.bindings.nccl..",
                    "dev.chagres.bindings.cudnn..",
                    "dev.chagres.bindings.cuda..");

    @ArchTest
    static final ArchRule namesSayWhatAClassIs =
            classes().should().haveNameNotMatching(".*(Util|Utils|Helper|Helpers|Manager|Impl)(\\$.*)?");
}
