package dev.chagres.architecture;

import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideInAnyPackage;
import static com.tngtech.archunit.core.domain.JavaClass.Predicates.resideOutsideOfPackages;
import static com.tngtech.archunit.core.domain.properties.HasName.Predicates.nameMatching;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.tngtech.archunit.base.DescribedPredicate;
import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.domain.JavaModifier;
import com.tngtech.archunit.core.domain.JavaPackage;
import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.junit.AnalyzeClasses;
import com.tngtech.archunit.junit.ArchTag;
import com.tngtech.archunit.junit.ArchTest;
import com.tngtech.archunit.lang.ArchRule;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.NullMarked;

/** The arrows of docs/architecture.md, and the house's names, held against every class of every module. */
@ArchTag("L0")
@AnalyzeClasses(packages = "dev.chagres", importOptions = ImportOption.DoNotIncludeTests.class)
class LayersTest {
    private static final String[] GENERATED = {
        "dev.chagres.bindings.te",
        "dev.chagres.bindings.ops",
        "dev.chagres.bindings.nccl",
        "dev.chagres.bindings.cudnn",
        "dev.chagres.bindings.cuda"
    };
    private static final String[] BINDINGS = {"dev.chagres.bindings.."};
    private static final String[] SAMPLES = {"dev.chagres.samples.."};
    private static final String[] JMH = {"dev.chagres.jmh.."};
    private static final DescribedPredicate<JavaClass> API = resideInAnyPackage("dev.chagres..")
            .and(resideOutsideOfPackages("dev.chagres.bindings..", "dev.chagres.samples..", "dev.chagres.jmh.."))
            .as("belong to the api");

    @ArchTest
    static final ArchRule bindingsKnowNothingAbove = noClasses()
            .that()
            .resideInAnyPackage(BINDINGS)
            .should()
            .dependOnClassesThat(API.or(resideInAnyPackage(SAMPLES)).or(resideInAnyPackage(JMH)));

    @ArchTest
    static final ArchRule apiKnowsNoUser = noClasses()
            .that(API)
            .should()
            .dependOnClassesThat(resideInAnyPackage(SAMPLES).or(resideInAnyPackage(JMH)));

    @ArchTest
    static final ArchRule samplesKnowNoBenchmark = noClasses()
            .that()
            .resideInAnyPackage(SAMPLES)
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage(JMH);

    @ArchTest
    static final ArchRule internalsStayInside = noClasses()
            .that()
            .resideInAnyPackage("dev.chagres.samples..", "dev.chagres.jmh..")
            .should()
            .dependOnClassesThat()
            .resideInAnyPackage("dev.chagres.internal..");

    /** jextract splits a large header over X, X_1, X_2 …; which function lies where changes with every regeneration. */
    @ArchTest
    static final ArchRule noNumberedBindings = noClasses()
            .that()
            .resideOutsideOfPackages(GENERATED)
            .should()
            .dependOnClassesThat(resideInAnyPackage(GENERATED)
                    .and(nameMatching(".*_\\d+(\\$.*)?").forSubtype())
                    .as("are numbered parts of generated bindings"));

    @ArchTest
    static final ArchRule namesSayWhatAClassIs = classes()
            .that()
            .resideOutsideOfPackages(GENERATED)
            .should()
            .haveNameNotMatching(".*(Util|Utils|Helper|Helpers|Manager|Impl)(\\$.*)?");

    @ArchTest
    static final ArchRule generatedCodeStandsAlone = noClasses()
            .that()
            .resideInAnyPackage(GENERATED)
            .should()
            .dependOnClassesThat(resideInAnyPackage("dev.chagres..").and(resideOutsideOfPackages(GENERATED)));

    @ArchTest
    static void theArchitecturePageNamesEveryPublicType(JavaClasses all) throws IOException {
        String page = Files.readString(Path.of("").toAbsolutePath().resolveSibling("docs/architecture.md"));
        List<String> unnamed = all
                .that(API.or(resideInAnyPackage("dev.chagres.bindings"))
                        .and(resideOutsideOfPackages("dev.chagres.internal..")))
                .stream()
                .filter(type -> type.isTopLevelClass() && type.getModifiers().contains(JavaModifier.PUBLIC))
                .map(JavaClass::getSimpleName)
                .filter(name -> !page.contains("`" + name + "`"))
                .sorted()
                .toList();
        assertEquals(List.of(), unnamed, "public types that docs/architecture.md does not name in its package tables");
    }

    @ArchTest
    static void handWrittenPackagesAreNullMarked(JavaClasses all) {
        List<String> unmarked = all.that(resideOutsideOfPackages(GENERATED)).stream()
                .map(JavaClass::getPackage)
                .filter(candidate -> !candidate.isAnnotatedWith(NullMarked.class))
                .map(JavaPackage::getName)
                .filter(name -> !name.endsWith(".jmh_generated"))
                .distinct()
                .sorted()
                .toList();
        assertEquals(List.of(), unmarked, "packages whose package-info lacks @NullMarked");
    }
}
