"""No test is skipped in silence: what the root's conftest.py does about it."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.fixture
def project(pytester):
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def test_a_skip_for_another_reason_fails(project):
    project.makepyfile(
        """
        import pytest

        def test_within(): pytest.skip("not installed")

        @pytest.mark.skip(reason="later")
        def test_marked(): pass
        """
    )
    result = project.runpytest()
    assert result.ret == 1
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["skipped (later)*", "skipped (not installed)*"])


def test_a_file_that_skips_itself_fails(project):
    project.makepyfile("import pytest; pytest.importorskip('no_such_module')")
    result = project.runpytest()
    assert result.ret != 0
    result.assert_outcomes(errors=1)


def test_a_skip_that_is_named_is_shown_and_passes(project):
    project.makepyfile(
        """
        import pytest

        @pytest.mark.skip(reason="no SIGALRM: grading ends the kernel instead")
        def test_marked(): pass

        @pytest.mark.xfail
        def test_known(): assert False

        def test_run(): pass
        """
    )
    result = project.runpytest()
    assert result.ret == 0
    result.assert_outcomes(skipped=1, xfailed=1, passed=1)
