// Search for readers who open the site from a folder. Browsers refuse Web Workers on file://, and
// the theme's search runs in one. Here the same script runs in a hidden frame that looks like a
// Worker to the page. It starts when the search gets the focus, since it shares the page's thread.
// On a server nothing changes.
if (location.protocol === "file:") {
  const asked = new Promise((resolve) => {
    const isSearch = (target) => target instanceof Element && target.matches(".md-search__input");
    addEventListener("focusin", (event) => isSearch(event.target) && resolve());
    if (new URLSearchParams(location.search).has("q")) resolve(); // a link to a search
  });
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.scope = asked.then(() => this.start(new URL(url, location).href));
    }

    start(address) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentDocument;
      inner.open();
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.write("<!doctype html><title>search</title><body></body>");
      inner.close();
      const script = inner.createElement("script");
      script.src = address;
      return new Promise((resolve, reject) => {
        script.onload = () => resolve(scope);
        script.onerror = () => reject(new Error(`cannot load ${address}`));
        inner.body.append(script);
      });
    }

    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
